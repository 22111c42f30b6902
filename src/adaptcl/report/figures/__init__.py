"""Figures of runs: curves and panels, composed to figures, saved as pictures."""

from adaptcl.report.figures.drawing import compose_figures, draw, figure_style, legend_below
from adaptcl.report.figures.pictures import FORMATS, PictureOptions, SavedPictures, image_of

__all__ = [
    "FORMATS",
    "PictureOptions",
    "SavedPictures",
    "compose_figures",
    "draw",
    "figure_style",
    "image_of",
    "legend_below",
]
