"""A bar for one long step: fetching, reading or packing data."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

PATIENCE = 1.0
"""Seconds a step may take before a bar is worth the flicker."""


@contextmanager
def bar(
    title: str,
    *,
    in_bytes: bool = False,
    console: Console | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Callable[[int, int | None], None]]:
    """Gives a function of (done, total) that draws a bar as soon as the step turns out long.

    It goes to standard error and is wiped away at the end; where that is no terminal, there is
    none.
    """
    console = console or Console(stderr=True, force_terminal=None if sys.stderr.isatty() else False)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn() if in_bytes else MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    bars = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    task = bars.add_task(title, total=None)
    began = clock()

    def show(done: int, total: int | None) -> None:
        if not bars.live.is_started and clock() - began > PATIENCE:
            bars.start()
        bars.update(task, completed=done, total=total)

    try:
        yield show
    finally:
        bars.stop()
