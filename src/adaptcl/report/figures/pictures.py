"""Pictures: figures as PNG, SVG and PDF files, the same figure always with the same bytes."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from adaptcl.errors import SettingError

_METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
"""By format, what a picture leaves out: date and program, so that equal figures are equal."""
FORMATS = tuple(_METADATA)
_DPI = 160


@dataclass(frozen=True)
class PictureOptions:
    """How figures become files."""

    formats: tuple[str, ...] = ("png",)
    titles: bool = True  # whether figures have titles. In a paper the caption says it.

    @classmethod
    def parse(cls, formats: str, *, titles: bool = True) -> PictureOptions:
        """Formats with commas between; `none` draws nothing."""
        named = [each.strip().lower() for each in formats.split(",")]
        for each in named if named != ["none"] else []:
            if each not in FORMATS:
                raise SettingError(
                    f"There is no figure format {each!r}; there are {', '.join(FORMATS)}, with "
                    "commas between, and none."
                )
        return cls(tuple(dict.fromkeys(named)) if named != ["none"] else (), titles)


class ShownFigure(Figure):
    """A figure that a notebook shows, also where no pyplot was imported."""

    def _repr_png_(self) -> bytes:
        return image_of(self, "png")


def image_of(figure: Figure, form: str) -> bytes:
    """The figure as a file of one of the `FORMATS`."""
    image = io.BytesIO()
    figure.savefig(image, format=form, dpi=_DPI, metadata=_METADATA[form])
    return image.getvalue()
