"""A progress bar for one long step: fetching, reading or packing data."""

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
    """Yield a function of (done, total) that draws a bar once the step turns out to be long.

    The bar goes to standard error and disappears at the end. Without a terminal there is no bar.
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
