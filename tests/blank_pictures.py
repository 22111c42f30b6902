"""Pictures that nobody looks at: to draw them takes longer than the runs they are of."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

DRAW = Figure.savefig


def blank(self: Figure, file: Any, **options: Any) -> None:
    """In place of `Figure.savefig`: a PNG file is written, but nothing is drawn."""
    if options.get("format") == "png":
        file.write(f"{self.get_suptitle()}, {len(self.axes)} axes".encode())
    else:
        DRAW(self, file, **options)
