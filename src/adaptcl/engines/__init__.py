"""How tasks reach workers, and what time it is."""
