"""The deadline that a strategy has asked for, on the clock of whoever runs it.

A deadline lasts until it has passed, a later one replaces it or the round that it was for closes.
"""

from __future__ import annotations

import math

from adaptcl.strategies.strategy import Reaction


class Deadline:
    """At most one at a time."""

    def __init__(self) -> None:
        self.at = math.inf
        """The moment; infinity while there is none."""

    def follow(self, reaction: Reaction, now: float) -> None:
        """Do as a strategy says in its reaction of this moment."""
        if reaction.deadline is not None:
            self.at = now + reaction.deadline
        elif reaction.closed is not None:
            self.clear()

    def clear(self) -> None:
        """There is none any more."""
        self.at = math.inf

    def left(self, now: float) -> float | None:
        """Seconds until it passes; None where there is none."""
        return None if self.at == math.inf else max(0.0, self.at - now)
