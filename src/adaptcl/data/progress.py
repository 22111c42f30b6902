"""How fetching and decoding tell how far they are: a plain callback, so anything can listen."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Progress: TypeAlias = Callable[[int, int | None], None]
"""Called with (done, total): bytes or images; total is None where it is not known."""


def silent(done: int, total: int | None) -> None:
    """Progress nobody watches."""
