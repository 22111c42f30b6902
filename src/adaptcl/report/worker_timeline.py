"""Who did what when: for each worker and round the time of sending, training, receiving, waiting.

The page and the figure of the timeline are made of this.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from adaptcl.records import RoundRecord

PHASES = ("send", "train", "receive", "wait")


@dataclass(frozen=True)
class TimelineBar:
    """One worker in one round, in seconds of the run's clock."""

    round: int
    begin_s: float
    send_s: float
    train_s: float
    receive_s: float
    until_s: float
    """When the worker gets its next task; it waits from the arrival of its update until then."""
    retention: float

    def phases(self) -> list[tuple[float, float]]:
        """The beginning and the length of each phase, in the order of `PHASES`."""
        begin, found = self.begin_s, []
        for length in (self.send_s, self.train_s, self.receive_s):
            found.append((begin, length))
            begin += length
        return [*found, (begin, max(0.0, self.until_s - begin))]


def worker_bars(
    rounds: Sequence[RoundRecord], workers: Sequence[int]
) -> dict[int, list[TimelineBar]]:
    """The bars of these workers, in the order of time."""
    bars: dict[int, list[TimelineBar]] = {worker: [] for worker in workers}
    busy_until = dict.fromkeys(workers, 0.0)
    for begin, record in with_starts(rounds):
        barrier = has_barrier(begin, record)
        for each in record.workers:
            if each.worker not in bars:
                continue
            starts = begin if barrier else busy_until[each.worker]
            ends = starts + each.update_time_s
            busy_until[each.worker] = ends
            until = record.virtual_time_s if barrier else ends
            times = (starts, each.send_s, each.train_s, each.receive_s, until)
            bars[each.worker].append(TimelineBar(record.round, *times, each.retention))
    return bars


def phase_seconds(rounds: Sequence[RoundRecord]) -> dict[int, list[float]]:
    """The seconds that each worker spent on each phase, in the order of `PHASES`."""
    totals: dict[int, list[float]] = {}
    for begin, record in with_starts(rounds):
        barrier = has_barrier(begin, record)
        for each in record.workers:
            wait = record.virtual_time_s - begin - each.update_time_s if barrier else 0.0
            spent = (each.send_s, each.train_s, each.receive_s, max(0.0, wait))
            known = totals.setdefault(each.worker, [0.0] * len(PHASES))
            totals[each.worker] = [old + new for old, new in zip(known, spent, strict=True)]
    return totals


def waiting_share(rounds: Sequence[RoundRecord]) -> float:
    """The share of all workers' time that they wait."""
    totals = list(phase_seconds(rounds).values())
    whole = math.fsum(second for spent in totals for second in spent)
    return math.fsum(spent[-1] for spent in totals) / whole if whole else 0.0


def with_starts(rounds: Sequence[RoundRecord]) -> list[tuple[float, RoundRecord]]:
    """Each record with the moment its round began."""
    ends = [0.0, *(record.virtual_time_s for record in rounds)]
    return list(zip(ends, rounds, strict=False))


def has_barrier(begin: float, record: RoundRecord) -> bool:
    """Whether all of a round's updates fit into it: then whoever is done waits for its end."""
    duration = (record.virtual_time_s - begin) * (1 + 1e-9)
    names = [worker.worker for worker in record.workers]
    return len(set(names)) == len(names) and all(
        worker.update_time_s <= duration for worker in record.workers
    )


def chosen_workers(rounds: Sequence[RoundRecord], most: int) -> list[int]:
    """Workers to show, by number; of many an even choice by their first update time."""
    first: dict[int, float] = {}
    for record in rounds:
        for worker in record.workers:
            first.setdefault(worker.worker, worker.update_time_s)
    slow_to_fast = sorted(first, key=lambda worker: (-first[worker], worker))
    return sorted(slow_to_fast[place] for place in even_choice(len(first), most))


def even_choice(count: int, most: int) -> list[int]:
    """At most so many places out of `count`, evenly spread, the first and the last among them."""
    if count <= most:
        return list(range(count))
    step = (count - 1) / (most - 1)
    return sorted({round(number * step) for number in range(most)})
