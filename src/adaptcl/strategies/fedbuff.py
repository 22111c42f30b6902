"""FedBuff: buffer the changes and move the model with every K of them (Nguyen et al., 2022).

θ ← θ + η/K · Σ s(τ)·(θ_w − θ_pulled) with s(τ) = 1/√(1+τ). The staleness τ counts how often the
*model* has moved between a worker's pull and its arrival, not how many changes have arrived.
Workers never wait: until the buffer is full they go on from the present model.

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
from adaptcl.storage import Tree
from adaptcl.strategies.asynchronous import Asynchronous, AsynchronousSettings, add_change
from adaptcl.strategies.strategy import Job
from adaptcl.training import Task, Update
from adaptcl.units import State


@dataclass(frozen=True)
class FedBuffSettings(AsynchronousSettings):
    """Settings of FedBuff."""

    buffer_size: int = setting(3, "number of updates that are merged together (K)", at_least=1)
    server_learning_rate: float = setting(
        1.0, "learning rate of the server for the mean of the buffered updates (η)", above=0
    )


class FedBuff(Asynchronous):
    """FedBuff with sparse training."""

    summary = "whole model for everybody, sparse training; merges changes several at a time"
    Settings: ClassVar[type[FedBuffSettings]] = FedBuffSettings

    def __init__(self, job: Job, settings: FedBuffSettings) -> None:
        super().__init__(job, settings)
        changes = job.workers * job.rounds
        if settings.buffer_size > changes:
            raise SettingError(
                f"buffer_size is {settings.buffer_size}, but {job.workers} workers send only "
                f"{changes} changes in {job.rounds} rounds, so the model would never move; make "
                "buffer_size smaller or rounds larger."
            )
        self.settings = settings
        self._next: State = job.state
        """The next model: the model moved by the changes in the buffer."""

    def merge(self, update: Update, task: Task, staleness: int) -> None:
        """Add the worker's change to the buffer, and empty the buffer if it is full."""
        size = self.settings.buffer_size
        moves = self.merges // size - (self.merges - staleness) // size
        weight = self.settings.server_learning_rate / math.sqrt(1 + moves) / size
        self._next = add_change(self._next, update.state, task.state, weight)
        if (self.merges + 1) % size == 0:
            self.state = self._next

    def snapshot(self) -> Tree:
        return {"asynchronous": super().snapshot(), "next": self._next}

    def restore(self, tree: Tree) -> None:
        super().restore(tree["asynchronous"])
        self._next = tree["next"]
