"""What an engine is: something that runs a strategy to its end."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Sequence
from typing import Protocol

from adaptcl.engines.heterogeneity import of_those_present
from adaptcl.events import Listener, RoundFinished, Warned
from adaptcl.records import RoundRecord
from adaptcl.storage import Tree
from adaptcl.strategies.strategy import Closed, Reaction


class Engine(Protocol):
    """Delivers a strategy's tasks, hands it what arrives, and keeps the clock."""

    def run(self, checkpoint: Callable[[Tree], None], resume: Tree | None = None) -> None:
        """Run to the end; `checkpoint` gets all that is needed to go on after every round."""
        ...


# The deadline that a strategy has asked for, on the clock of whoever runs it.
#
# A deadline lasts until it has passed, a later one replaces it or the round that it was for
# closes.


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


# Bytes that cross the wire, counted as it happens and told round by round.
#
# What the updates that were used have cost is not all of it: some arrive too late or cannot be
# used, and some tasks are never answered. A task is counted when it has ended, one way or the
# other, so that what is still under way when a run ends, or is done again when it is resumed, is
# in no sum twice, and a task and its answer are in the same round.


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


# The end of a round, as every engine tells of it.


def tell_round(
    tell: Listener,
    closed: Closed,
    time_s: float,
    accuracy: float | None,
    update_times: Sequence[float],
    away: Container[int],
    traffic: Traffic,
) -> None:
    """Tell the warnings of a round that a strategy has closed, and its record.

    `update_times` are the latest of all workers; 0 where there is none yet. Where not everybody
    was asked, the heterogeneity is that of the workers drawn.
    """
    sent, received = traffic.of_round()
    asked = closed.participants or range(len(update_times))
    for warning in closed.warnings:
        tell(Warned(warning))
    tell(
        RoundFinished(
            RoundRecord(
                round=closed.round,
                virtual_time_s=time_s,
                accuracy=accuracy,
                heterogeneity=of_those_present(update_times, asked, away),
                workers=closed.workers,
                similarity=closed.similarity,
                missing=closed.missing,
                participants=closed.participants,
                bytes_sent=sent,
                bytes_received=received,
            )
        )
    )
