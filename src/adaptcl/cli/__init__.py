"""The command line.

A setting's flag comes from its `setting(...)` declaration (`setting_flags.py`). All other flags are
in `parser.py`. Both do without PyTorch: the module of a command is imported when the command runs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


def say(line: str) -> None:
    """Print a message of the program itself, beside its output."""
    print(f"adaptcl: {line}", file=sys.stderr, flush=True)


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
