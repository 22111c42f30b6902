"""Who did what when: for each worker and round the time of sending, training, receiving, waiting.

With a barrier, whoever has answered waits until its round closes. Without one, a worker waits until
it gets its next task; a time that it was away for is no waiting. The page and the figure of the
timeline are made of this.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from adaptcl.records import RoundRecord, WorkerRecord

PHASES = ("send", "train", "receive", "wait")


@dataclass(frozen=True)
class TimelineBar:
    """One worker in one round, in seconds of the run's clock."""

    record: WorkerRecord
    round: int
    begin_s: float
    wait_s: float  # from the arrival of the update until the worker's waiting ends

    @property
    def seconds(self) -> tuple[float, float, float, float]:
        """The length of each phase, in the order of `PHASES`."""
        each = self.record
        return each.send_s, each.train_s, each.receive_s, self.wait_s

    @property
    def until_s(self) -> float:
        return self.begin_s + self.record.update_time_s + self.wait_s

    def phases(self) -> list[tuple[float, float]]:
        """The beginning and the length of each phase."""
        begins = accumulate(self.seconds, initial=self.begin_s)
        return list(zip(begins, self.seconds, strict=False))


def timeline_bars(rounds: Sequence[RoundRecord]) -> list[list[TimelineBar]]:
    return list(_backwards(rounds))[::-1]


def _backwards(rounds: Sequence[RoundRecord]) -> Iterator[list[TimelineBar]]:
    """The bars of each round, the last round first: how long a worker waits shows later."""
    next_begins: dict[int, float] = {}
    begins = [0.0, *(record.virtual_time_s for record in rounds)]
    for begin, record in reversed(list(zip(begins, rounds, strict=False))):
        has_barrier = any(each.begin_s is None for each in record.workers)
        for away in record.missing:
            next_begins.pop(away, None)
        bars = []
        for each in reversed(record.workers):
            starts = begin if each.begin_s is None else each.begin_s
            ends = starts + each.update_time_s
            closes = record.virtual_time_s if has_barrier else next_begins.get(each.worker, ends)
            bars.append(TimelineBar(each, record.round, starts, max(0.0, closes - ends)))
            next_begins[each.worker] = starts
        yield bars[::-1]


def waiting_share(bars: Sequence[Sequence[TimelineBar]]) -> float:
    """The share of all workers' time that they wait."""
    waits = math.fsum(bar.wait_s for of_round in bars for bar in of_round)
    works = math.fsum(bar.record.update_time_s for of_round in bars for bar in of_round)
    return waits / (waits + works) if waits else 0.0


def chosen_workers(rounds: Sequence[RoundRecord], most: int) -> list[int]:
    """Workers to show, by number; of many an even choice by their first update time."""
    first: dict[int, float] = {}
    for record in rounds:
        for worker in record.workers:
            first.setdefault(worker.worker, worker.update_time_s)
    slow_to_fast = sorted(first, key=lambda worker: (-first[worker], worker))
    return sorted(slow_to_fast[place] for place in even_choice(len(first), most))


def even_choice(count: int, most: int) -> list[int]:
    """Up to `most` of `count` places, evenly spread, with the first and the last."""
    if count <= most:
        return list(range(count))
    step = (count - 1) / (most - 1)
    return sorted({round(number * step) for number in range(most)})
