"""Everything a person sees of a run: its progress, its table and its figures."""
