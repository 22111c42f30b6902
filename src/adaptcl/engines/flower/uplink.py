"""In what pieces a worker's answer travels, by how fast its link has turned out to be.

A piece arrives as a whole or not at all, and until then neither side knows whether the other is
still there. So over a slow link pieces have to be small, or one of them would take longer than
anybody waits; and few at a time, or they would hold up the worker's signs of life. Over a fast
link each piece costs some milliseconds whatever its size, and pieces should be large. How fast a
link is shows when an answer is sent, so the first one goes carefully.
"""

from __future__ import annotations

from dataclasses import dataclass

LEAST_BYTES, MOST_BYTES = 2**17, 2**20
"""Of a piece."""

PIECE_S = 150.0
"""How long pieces under way may take together. Flower forgets an answer of which it has not seen
another piece for 180 s."""

_AIM_S = 4.0
"""How long they should take: a fraction of the silence after which a worker is given up."""

_AT_ONCE = 2
"""So that, where there is room for two, none waits for another's confirmation."""


@dataclass(frozen=True)
class Pieces:
    """How to cut an answer, and how many pieces to send at the same time."""

    size: int
    at_once: int


class Uplink:
    """What is known of one connection's way to the server."""

    def __init__(self) -> None:
        self._rate = 0.0
        """In bytes a second."""

    def pieces(self) -> Pieces:
        """How the next answer is to travel."""
        room = int(_AIM_S * self._rate)
        at_once = _AT_ONCE if room >= _AT_ONCE * LEAST_BYTES else 1
        return Pieces(min(MOST_BYTES, max(LEAST_BYTES, room // at_once)), at_once)

    def learn(self, size: int, seconds: float) -> None:
        """So many bytes have taken so long; of few of them only the delay would be seen."""
        if size >= LEAST_BYTES:
            self._rate = size / max(seconds, 1e-6)
