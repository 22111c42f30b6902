"""Comparing runs: which belong together, with what, and when each gets where."""
