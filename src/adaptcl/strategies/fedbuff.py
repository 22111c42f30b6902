"""FedBuff: buffer the changes and move the model with every K of them (Nguyen et al., 2022).

θ ← θ + η/K · Σ s(τ)·(θ_w − θ_pulled) with s(τ) = 1/√(1+τ). The staleness τ counts how often the
*model* has moved between a worker's pull and its arrival, not how many changes have arrived.
Workers never wait: until the buffer is full they go on from the present model.

The authors tune η for each task. With η = 1 the changes of one round add up to √(W/K) times their
average, because W workers are under way and τ is about W/K − 1. For ten workers and K = 3 that is
1.8 times; training with momentum then swings until the last rounds. So the default is η = √(K/W).

The weight of a change is known when it arrives, so the buffer does not hold K changes. It holds the
next model, which every change moves and which replaces the model with the K-th. Changes that do not
fill a buffer by the end of a run are not part of its model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from adaptcl.errors import SettingError
from adaptcl.settings import setting
from adaptcl.strategies.asynchronous import Asynchronous, AsynchronousSettings, add_change
from adaptcl.strategies.strategy import Job
from adaptcl.training import Task, Update
from adaptcl.units import State


@dataclass(frozen=True)
class FedBuffSettings(AsynchronousSettings):
    """How many updates are merged together, and with what learning rate."""

    buffer_size: int = setting(3, "number of updates that are merged together (K)", at_least=1)
    server_learning_rate: float = setting(
        0.0,
        "learning rate of the server for the mean of the buffered updates (η); 0 takes √(K/W), at "
        "most 1, with which the updates of a round add up to about their average",
        at_least=0,
    )


class FedBuff(Asynchronous):
    """FedBuff with plain training, as it was published: no group lasso."""

    summary = "whole model for everybody, plain training; merges changes several at a time"
    Settings: ClassVar[type[FedBuffSettings]] = FedBuffSettings
    settings: FedBuffSettings
    unused: ClassVar[tuple[str, ...]] = (*Asynchronous.unused, "strength")
    remembered: ClassVar[tuple[str, ...]] = (*Asynchronous.remembered, "_next")

    def __init__(self, job: Job, settings: FedBuffSettings) -> None:
        super().__init__(job, settings)
        changes = job.workers * job.rounds
        if settings.buffer_size > changes:
            raise SettingError(
                f"buffer_size is {settings.buffer_size}, but {job.workers} workers send only "
                f"{changes} changes in {job.rounds} rounds, so the model would never move; make "
                "buffer_size smaller or rounds larger."
            )
        usual = min(1.0, math.sqrt(settings.buffer_size / job.workers))
        self._learning_rate = settings.server_learning_rate or usual
        self._next: State = job.state
        """The next model: the model moved by the changes in the buffer."""

    def merge(self, update: Update, task: Task, staleness: int) -> None:
        """Add the worker's change to the buffer, and empty the buffer if it is full."""
        size = self.settings.buffer_size
        moves = self.merges // size - (self.merges - staleness) // size
        weight = self._learning_rate / math.sqrt(1 + moves) / size
        self._next = add_change(self._next, update.state, task.state, weight, self.units.buffers)
        if (self.merges + 1) % size == 0:
            self.state = self._next
