"""Figures of runs: curves and panels, composed to figures, saved as pictures."""
