"""The folder of a run: what is in it, who writes it, and how it is read."""
