"""The command line.

A setting's flag comes from its `setting(...)` declaration (`setting_flags.py`). All other flags are
in `parser.py`. Both do without PyTorch: the module of a command is imported when the command runs.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from datetime import datetime
from typing import TextIO


def say(line: str) -> None:
    """Print a message of the program itself, beside its output."""
    print(f"adaptcl: {line}", file=sys.stderr, flush=True)


class _WithTimes(io.TextIOBase):
    """Writes the time of day before each line."""

    def __init__(self, to: TextIO) -> None:
        self._to = to
        self._in_line = False

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._to.encoding

    def fileno(self) -> int:
        return self._to.fileno()

    def flush(self) -> None:
        self._to.flush()

    def write(self, text: str) -> int:
        for line in text.splitlines(keepends=True):
            if not self._in_line:
                self._to.write(datetime.now().astimezone().isoformat(" ", "seconds") + " ")
            self._to.write(line)
            self._in_line = not line.endswith("\n")
        return len(text)


@contextmanager
def with_times() -> Iterator[None]:
    """The time of day, local, before each line that goes to no terminal.

    Servers and workers run for days, and what they say ends in a file. On a terminal somebody looks
    on, and the display of a run has clocks of its own.
    """
    with ExitStack() as stack:
        if not sys.stdout.isatty():
            stack.enter_context(redirect_stdout(_WithTimes(sys.stdout)))
        if not sys.stderr.isatty():
            stack.enter_context(redirect_stderr(_WithTimes(sys.stderr)))
        yield


@contextmanager
def doing(what: str) -> Iterator[None]:
    """Show on a terminal what takes a moment. It disappears when it is done."""
    is_shown = sys.stderr.isatty()
    if is_shown:
        print(f"{what} …", end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if is_shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
