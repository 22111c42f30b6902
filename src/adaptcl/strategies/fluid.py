"""FLuID: the slowest workers leave out the units that the others hardly change (Wang et al., 2023).

*Stragglers* are the slowest workers. Each gets a sub-model of a width with which it takes as long
as the slowest of the others, found from measured update times and adapted when they change. It
leaves out *invariant* units. The change of a unit in a worker's round is the largest relative
change of any of its weights. A unit is invariant if its change is below a threshold on three
quarters of the workers that train the whole model. The authors raise the threshold of each layer
step by step until enough units are invariant. Here each unit has the lowest threshold at which it
would be invariant, and those with the lowest are left out: the same, without steps. Each unit is
averaged over the workers that hold it, and training is plain.

Differences from the authors' code:

- Any width is possible. They have five, from 0.95 to 0.5, for which their phones hold compiled
  models, and assume that the time is proportional to it.
- Sub-models are given out from round 2 on, after one round of measurements; theirs from round 3.
- Batch norm, which their nets lack, is static as in HeteroFL.
- The weights of a unit are those of its filter and of the filters that read it. Biases and
  batch norm begin at 0 and have no relative change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from adaptcl.records import WorkerRecord
from adaptcl.settings import setting
from adaptcl.strategies.heterofl import MatchedWidths, WidthSettings, count_of
from adaptcl.strategies.strategy import Job
from adaptcl.strategies.synchronous import SubModelPlan, Synchronous
from adaptcl.training import Arrival, Task
from adaptcl.units import FIXED, Kept, UnitMap

_AGREEING = 0.75  # the share of the workers with the whole model on which a unit must be invariant


@dataclass(frozen=True)
class FLuIDSettings(WidthSettings):
    """How many workers count as stragglers."""

    straggler_share: float = setting(
        0.2,
        "share of the workers that get sub-models: the slowest, each as small as it takes to keep "
        "up with the slowest of the others",
        at_least=0,
        below=1,
    )


class FLuID(Synchronous):
    """The slowest workers train without the units that the others hardly change."""

    summary = "smaller sub-models for the slowest workers, without units that others hardly change"
    Settings: ClassVar[type[FLuIDSettings]] = FLuIDSettings
    unused: ClassVar[tuple[str, ...]] = (*Synchronous.unused, "strength")
    remembered: ClassVar[tuple[str, ...]] = (*Synchronous.remembered, "_matched", "_thresholds")

    def __init__(self, job: Job, settings: FLuIDSettings) -> None:
        super().__init__(job, settings)
        self._matched = MatchedWidths(job)
        # ⌊0.29 · 100⌋ is 28 in floating point; `count_of` knows.
        self._ahead = count_of(1 - settings.straggler_share, job.workers) - 1
        """How many workers are faster than the slowest that is no straggler."""
        self._changes: list[Tensor] = []
        """The change of each unit, one tensor for each update of the whole model in this round."""
        self._thresholds = torch.zeros(job.units.count)
        """The lowest threshold at which each unit would be invariant."""

    def plan(self, worker: int) -> SubModelPlan:
        width = self._matched.widths[worker]
        return SubModelPlan(most_changed(self.units, self._thresholds, width))

    def received(self, task: Task, arrival: Arrival, rate: float) -> None:
        self._matched.received(task, arrival)
        if bool(task.kept.all()):
            self._changes.append(relative_changes(self.units, task, arrival))

    def learn(self, records: Sequence[WorkerRecord]) -> tuple[str, ...]:
        if self._changes:
            agreeing = math.ceil(_AGREEING * len(self._changes))
            self._thresholds = torch.stack(self._changes).kthvalue(agreeing, dim=0).values
            self._changes.clear()
        self._matched.match(self._ahead)
        return self.warn_nothing_to_cut()


def relative_changes(units: UnitMap, task: Task, arrival: Arrival) -> Tensor:
    """For each unit, the largest |change| / |value| of its weights, from an update of all units."""
    largest = torch.zeros(units.count)
    for slot in units.slots:
        before = task.state.get(slot.tensor)  # a forecast has no tensors
        if before is None or before.dim() < 2 or slot.tensor not in units.parameters:
            continue
        change = (arrival.update.state[slot.tensor] - before).abs() / before.abs()
        others = [dim for dim in range(before.dim()) if dim != slot.dim]
        # 0/0 is no change.
        by_index = change.nan_to_num(nan=0.0, posinf=torch.inf).amax(others).float().cpu()
        known = slot.ids != FIXED
        largest.scatter_reduce_(0, slot.ids[known], by_index[known], "amax")
    return largest


def most_changed(units: UnitMap, change: Tensor, width: float) -> Kept:
    """The ⌈width·n⌉ units of every layer with the n units that changed most."""
    kept = units.everything()
    if width == 1:
        return kept
    for layer in units.layers:
        here = slice(layer.units.start, layer.units.stop)
        order = change[here].argsort(descending=True, stable=True)
        kept[here] = False
        kept[here][order[: count_of(width, len(layer.units))]] = True
    return kept
