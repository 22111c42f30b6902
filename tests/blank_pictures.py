"""Pictures that nobody looks at: to draw them takes longer than the runs they are of."""

from __future__ import annotations

import os
from typing import Any

from matplotlib.figure import Figure

_DRAW = Figure.savefig


def savefig(self: Figure, fname: Any, **options: Any) -> None:
    """In place of `Figure.savefig`: only tests of the report draw what a PNG file shows."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "")
    if options.get("format") == "png" and "tests/report" not in test:
        fname.write(f"{self.get_suptitle()}, {len(self.axes)} axes".encode())
    else:
        _DRAW(self, fname, **options)
