"""A text from another machine, as it may be shown: it must neither steer a terminal nor fill it."""

from __future__ import annotations

_MOST = 500


def printable(text: str) -> str:
    """The text without what is not printable, and cut where it is long."""
    shown = "".join(c for c in text[: _MOST + 1] if c.isprintable())
    return shown if len(text) <= _MOST else f"{shown[:_MOST]}…"
