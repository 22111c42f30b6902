"""HeteroFL (Diao et al., 2020) and FedRolex (Alam et al., 2022): sub-models of fixed widths.

In HeteroFL a worker of width p holds the first ⌈p·n⌉ of the n units of every layer, so narrow
sub-models are contained in wide ones. Each unit is averaged over the workers that hold it. HeteroFL
needs each worker's width before the first round, when nothing is known about the workers; the
authors assign five levels. `worker_widths = "matched"` finds widths from measured times instead, by
AdaptCL's rules (`MatchedWidths`, which FLuID uses too).

Training is plain, without the group lasso. Batch norm is *static*, as the authors call it: workers
normalise by their batches alone, as batch norm always does in training, and the statistics of the
model are measured on everybody's data when it is tested and delivered.

Left out:

- The scaler, which divides activations by p in training. It stands before a batch norm, which
  undoes it.
- The loss masked to the labels that a worker has, and their rows of the classifier averaged over
  these workers alone. It changes nothing while each worker has samples of every label, as with s =
  80, and otherwise the server would have to know everybody's labels.
- Clipping of gradients. It is no part of the method, and no other strategy here has it.

In FedRolex the window of units moves by one unit a round and wraps around at the end of each layer.
So every unit is trained in narrow sub-models too, and the model may be wider than any of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from adaptcl.errors import SettingError
from adaptcl.records import WorkerRecord
from adaptcl.settings import When, redeclared, refuse_other_count, setting
from adaptcl.storage import Remembered
from adaptcl.strategies.adaptcl.guards import plausible_retention, whole_model_point
from adaptcl.strategies.adaptcl.speed_history import (
    SpeedHistory,
    remember_same_conditions,
    size_of,
)
from adaptcl.strategies.strategy import Job
from adaptcl.strategies.synchronous import SubModelPlan, Synchronous, SynchronousSettings
from adaptcl.training import Arrival, Task
from adaptcl.units import Kept, State, UnitMap, retention

MATCHED = "matched"
_NARROWEST = 1 / 16
"""HeteroFL's narrowest level. Matched widths stop there, where hardly anything is left to save."""
_LEAST_CHANGE = 0.05
"""A width stays if the new one differs by less, so that sub-models do not change for nothing."""


@dataclass(frozen=True)
class WidthSettings(SynchronousSettings):
    """What all strategies with sub-models of a width have in common, FLuID too."""

    aggregation: str = redeclared(SynchronousSettings, "aggregation", "by-unit")
    static_batch_norm: bool = setting(
        True,
        "test and deliver the model with batch-norm statistics measured on training samples, as "
        "HeteroFL's authors do; false keeps the merged statistics",
        condition=When(unused=["fresh_statistics"]),
    )


@dataclass(frozen=True)
class HeteroFLSettings(WidthSettings):
    """Which worker trains a sub-model of which width."""

    width_levels: tuple[float, ...] = setting(
        (1.0, 0.5, 0.25, 0.125, 0.0625),
        "widths for equal groups of workers; the widest go to the last workers, which are the "
        "fastest in a simulation",
        above=0,
        at_most=1,
        condition=When(unused=["worker_widths"]),
    )
    worker_widths: tuple[float, ...] | str = setting(
        (),
        "width of each worker's sub-model as a share of every layer, instead of width_levels; "
        "matched makes all workers as fast as the fastest, from measured update times",
        above=0,
        at_most=1,
        choices=(MATCHED,),
    )


class HeteroFL(Synchronous):
    """Each worker trains the first units of every layer."""

    summary = "a sub-model of fixed width for each worker, always the same units"
    Settings: ClassVar[type[HeteroFLSettings]] = HeteroFLSettings
    unused: ClassVar[tuple[str, ...]] = (*Synchronous.unused, "strength")
    remembered: ClassVar[tuple[str, ...]] = (*Synchronous.remembered, "_matched")

    def __init__(self, job: Job, settings: HeteroFLSettings) -> None:
        super().__init__(job, settings)
        self._matched = MatchedWidths(job) if settings.worker_widths == MATCHED else None
        self._dealt = () if self._matched else deal_widths(settings, job.workers)
        # A worker that is never drawn keeps this sub-model.
        by_width = {width: window(job.units, width, first=0) for width in set(self._widths)}
        self.kept = [by_width[width] for width in self._widths]

    @property
    def _widths(self) -> Sequence[float]:
        return self._matched.widths if self._matched else self._dealt

    def plan(self, worker: int) -> SubModelPlan:
        return SubModelPlan(window(self.units, self._widths[worker], first=0))

    def received(self, task: Task, arrival: Arrival, rate: float) -> None:
        if self._matched:
            self._matched.received(task, arrival)

    def learn(self, records: Sequence[WorkerRecord]) -> tuple[str, ...]:
        if self._matched:
            self._matched.match(ahead=0)
        return self.warn_nothing_to_cut()


class FedRolex(HeteroFL):
    """Each worker trains a window of every layer, which moves each round."""

    summary = "a sub-model of fixed width for each worker, other units every round"

    def plan(self, worker: int) -> SubModelPlan:
        """The window of this round; in round 1 it begins at the first unit."""
        return SubModelPlan(window(self.units, self._widths[worker], first=self.round - 1))

    def model(self) -> State:
        """The whole model: a unit outside all windows only waits for its turn."""
        return self.state


def deal_widths(settings: HeteroFLSettings, workers: int) -> Sequence[float]:
    """The width of each worker's sub-model, from the slowest worker to the fastest."""
    given = settings.worker_widths
    if given and not isinstance(given, str):
        refuse_other_count(f"worker_widths has {len(given)} entries", len(given), workers)
        return given
    levels = sorted(settings.width_levels, reverse=True)
    if not levels:
        raise SettingError("width_levels is empty, but it must have at least one width.")
    # Dealt from the fastest on, so that the widest is used even with fewer workers than levels.
    return [levels[place * len(levels) // workers] for place in reversed(range(workers))]


# Widths -----------------------------------------------------------------------------------------


def count_of(width: float, units: int) -> int:
    """How many of a layer's units a sub-model of this width holds: ⌈width·n⌉, at least one."""
    # 0.07 · 100 is a little more than 7 in floating point, and must not become 8 units.
    return max(1, math.ceil(width * units - 1e-9))


def window(units: UnitMap, width: float, first: int) -> Kept:
    """⌈width·n⌉ of the n units of every layer: those from `first` on, wrapping around the end."""
    kept = units.everything()
    for layer in units.layers:
        n = len(layer.units)
        place = (torch.arange(n) - first) % n
        kept[layer.units.start : layer.units.stop] = place < count_of(width, n)
    return kept


class MatchedWidths(Remembered):
    """Widths with which slow workers take as long as a faster one, from measured update times.

    Everybody begins with the whole model, and from then on each time may change a width. AdaptCL's
    rules say which size is as fast as wanted, and when a worker has become faster or slower and
    earlier times no longer hold.
    """

    remembered: ClassVar[tuple[str, ...]] = ("widths", "_speeds")

    def __init__(self, job: Job) -> None:
        self.widths = [1.0] * job.workers
        self._units = job.units
        self._speeds = SpeedHistory(job.workers, job.time_noise, remember_same_conditions)
        self._least_change = _LEAST_CHANGE + 2 * job.time_noise

    def received(self, task: Task, arrival: Arrival) -> None:
        """Note how long a worker took, also where its update is too late to be used."""
        if arrival.timing.is_cold:
            return
        # Each time is a point by itself, because the next task may have another width.
        self._speeds.add(task.worker, arrival.timing.update_time)
        self._speeds.average_times(lambda _: size_of(self._units, task.kept))
        self._speeds.forget_times(task.worker)

    def match(self, ahead: int) -> None:
        """Let nobody take longer than the worker that `ahead` others are faster than.

        Only workers whose time is known count. Until it is, a worker trains the whole model.
        """
        known = {worker: points for worker, points in enumerate(self._speeds.points) if points}
        if not known:
            return
        whole = {w: whole_model_point(points).update_time for w, points in known.items()}
        target = sorted(whole.values())[min(ahead, len(whole) - 1)]
        for worker, points in known.items():
            is_slower = whole[worker] > target
            # Without caution (α = 1): units that are left out in vain come back the next round.
            wanted = plausible_retention(points, target, alpha=1.0) if is_slower else 1.0
            width = self._width(wanted)
            if width == 1 or abs(width - self.widths[worker]) > self._least_change * width:
                self.widths[worker] = width

    def _width(self, wanted: float) -> float:
        """The widest width whose sub-models have at most this retention."""
        if wanted >= 1:
            return 1.0
        narrow, wide = _NARROWEST, 1.0
        # Retention grows with the width in steps, so halving finds the widest that is small enough.
        while wide - narrow > 1e-3:
            middle = (narrow + wide) / 2
            fits = retention(self._units, window(self._units, middle, first=0)) <= wanted
            narrow, wide = (middle, wide) if fits else (narrow, middle)
        return narrow
