"""Where a run stands, as far as its events have told: what a progress display shows.

A standing never changes; each event gives a new one. So the thread that redraws the screen can
read one at any moment without a lock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from adaptcl.events import (
    Event,
    RoundFinished,
    RunFinished,
    RunStarted,
    UpdateArrived,
    WorkerJoined,
    WorkerLost,
)
from adaptcl.records import RoundRecord, Summary, WorkerRecord


@dataclass(frozen=True)
class Standing:
    """A run from its start to the latest event."""

    run: RunStarted
    started_at: float
    """When the run began or went on, on the clock of the display."""
    rounds_done: int
    virtual_time_s: float = 0.0
    heterogeneity_first: float | None = None
    heterogeneity: float | None = None
    accuracies: tuple[float, ...] = ()
    workers: Mapping[int, WorkerRecord | None] = field(default_factory=lambda: MappingProxyType({}))
    """The latest record of each worker; None where it has not been in a round yet."""
    pruned: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    """The rate by which each worker was pruned when it last was."""
    arrived: frozenset[int] = frozenset()
    """Workers whose update came since the last round was closed."""
    lost: frozenset[int] = frozenset()
    summary: Summary | None = None

    @classmethod
    def at_start(cls, run: RunStarted, now: float) -> Standing:
        """Nothing has happened yet but the start."""
        nobody = MappingProxyType(dict.fromkeys(range(run.workers)))
        return cls(run=run, started_at=now, rounds_done=run.rounds_done, workers=nobody)

    def after(self, event: Event) -> Standing:
        """The standing once this event has happened; most events change one thing."""
        match event:
            case UpdateArrived(worker=worker, virtual_time_s=time_s):
                latest = max(self.virtual_time_s, time_s)
                return replace(self, arrived=self.arrived | {worker}, virtual_time_s=latest)
            case RoundFinished(record=record):
                return self._after_round(record)
            case WorkerLost(worker=worker):
                return replace(self, lost=self.lost | {worker})
            case WorkerJoined(worker=worker):
                known = MappingProxyType({worker: None, **self.workers})
                return replace(self, lost=self.lost - {worker}, workers=known)
            case RunFinished(summary=summary):
                return replace(self, summary=summary)
            case _:
                return self

    def seconds_left(self, now: float) -> float | None:
        """What the rounds to come will take if they go like those of this session."""
        done_here = self.rounds_done - self.run.rounds_done
        if done_here <= 0:
            return None
        rounds_left = max(0, self.run.rounds - self.rounds_done)
        return (now - self.started_at) / done_here * rounds_left

    def _after_round(self, record: RoundRecord) -> Standing:
        accuracy, first = record.accuracy, self.heterogeneity_first
        measured = (accuracy,) if accuracy is not None and math.isfinite(accuracy) else ()
        pruned = {w.worker: w.pruned_rate for w in record.workers if w.pruned_rate != 0}
        return replace(
            self,
            rounds_done=record.round,
            virtual_time_s=record.virtual_time_s,
            heterogeneity_first=record.heterogeneity if first is None else first,
            heterogeneity=record.heterogeneity,
            accuracies=self.accuracies + measured,
            workers=MappingProxyType({**self.workers, **{w.worker: w for w in record.workers}}),
            pruned=MappingProxyType({**self.pruned, **pruned}),
            arrived=frozenset(),
        )
