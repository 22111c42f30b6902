"""Bytes that cross the wire, counted as it happens and told round by round.

What the updates that were used have cost is not all of it: some arrive too late or cannot be used,
and some tasks are never answered. A task is counted when it has ended, one way or the other, so
that what is still under way when a run ends, or is done again when it is resumed, is in no sum
twice, and a task and its answer are in the same round.
"""

from __future__ import annotations


class Traffic:
    """The bytes since the last round was told."""

    def __init__(self) -> None:
        self._sent, self._received = 0, 0

    def task_ended(self, size: int) -> None:
        """A task of so many bytes is over: it was answered, or it came to nothing."""
        self._sent += size

    def answered(self, size: int) -> None:
        """An answer of so many bytes is there, whether it will be used or not."""
        self._received += size

    def of_round(self) -> tuple[int, int]:
        """Bytes sent and received until now; those of the next round are counted from here on."""
        moved = self._sent, self._received
        self._sent, self._received = 0, 0
        return moved
