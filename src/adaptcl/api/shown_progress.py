"""Shows the progress of calls: in a notebook without being asked, elsewhere on request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from adaptcl.events import Listener
from adaptcl.report.live_display import in_notebook
from adaptcl.report.progress import Progress


@contextmanager
def with_progress(
    asked: bool | None, listeners: Listener | Sequence[Listener]
) -> Iterator[list[Listener]]:
    """The listeners of a call, and one that shows the progress if nothing else does."""
    heard = [listeners] if callable(listeners) else [*listeners]
    is_shown = any(isinstance(each, Progress) for each in heard)
    if asked is False or is_shown or not (asked or in_notebook()):
        yield heard
        return
    with Progress() as progress:
        yield [progress, *heard]
