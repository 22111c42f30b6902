"""Warnings that point at the user's own line, however deep in the package their cause is."""

from __future__ import annotations

import sys
import warnings

from adaptcl.errors import AdaptCLWarning

_BETWEEN = frozenset({"adaptcl", "contextlib", "torch"})
"""Packages whose lines say nothing to a user: ours, and those that call us back."""


def warn_caller(message: str) -> None:
    """An `AdaptCLWarning` at the line that called into the package."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _is_between(frame.f_globals.get("__name__")):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, AdaptCLWarning, stacklevel=level)


def _is_between(module: object) -> bool:
    return str(module).partition(".")[0] in _BETWEEN
