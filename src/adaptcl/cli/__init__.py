"""The command line, one file a command.

`main.py` and `parser.py` understand a command line without importing PyTorch. The module of a
command is imported when the command runs.
"""

from __future__ import annotations

import sys


def say(line: str) -> None:
    """Print a message of the program itself, beside its output."""
    print(f"adaptcl: {line}", file=sys.stderr, flush=True)
