"""A live display in a notebook: one output of the cell, replaced while a run goes on."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from io import StringIO
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.text import Text

_EVERY_S = 0.25
"""At most this often the output is replaced, however much happens."""
_WIDTH = 100
_HEIGHT = 50
_LINES = 100
"""Of more lines than this only the latest are shown."""
_HTML = "<pre style='line-height:normal;white-space:pre;overflow-x:auto'>{code}</pre>"


def in_notebook() -> bool:
    """Whether this code runs in a Jupyter kernel, which shows HTML."""
    ipython = sys.modules.get("IPython")  # a kernel has imported it
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


class NotebookDisplay:
    """Draws into one output of the running cell; a saved notebook holds only the last drawing.

    Rich's display for notebooks needs ipywidgets. This one needs nothing that a kernel lacks.
    """

    def __init__(
        self, render: Callable[[], RenderableType], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._render = render
        self._clock = clock
        self._handle: Any = None
        self._drawn_at = 0.0
        self.lines: deque[Text] = deque(maxlen=_LINES)
        """What stays above the drawing."""

    def refresh(self) -> None:
        """Draw what is to be seen now, unless it was drawn a moment ago."""
        if self._handle is None or self._clock() - self._drawn_at >= _EVERY_S:
            self._draw()

    def stop(self) -> None:
        """Draw the last state, which stays."""
        if self._handle is not None:
            self._draw()

    def _draw(self) -> None:
        from IPython.display import display

        self._drawn_at = self._clock()
        shown = _as_bundle(Group(*self.lines, self._render()))
        if self._handle is None:
            self._handle = display(shown, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(shown, raw=True)


def _as_bundle(drawing: RenderableType) -> dict[str, str]:
    """A drawing in the two forms that notebooks choose from."""
    recorder = Console(
        file=StringIO(),
        record=True,
        width=_WIDTH,
        height=_HEIGHT,
        force_terminal=True,
        force_jupyter=False,
        color_system="truecolor",
        legacy_windows=False,
    )
    recorder.print(drawing)
    plain = recorder.export_text(clear=False)
    html = recorder.export_html(inline_styles=True, code_format=_HTML)
    return {"text/html": html, "text/plain": plain}
