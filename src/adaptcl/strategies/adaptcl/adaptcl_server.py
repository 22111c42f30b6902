"""AdaptCL's server: a sub-model for each worker, cut so that all finish together (Algorithm 1).

Once every pruning interval the server looks at how long each worker took, learns how much each has
to prune, and asks for it in the worker's next task. Algorithm 2 as printed is in `pruned_rate.py`;
by default `guards.py` decides, which makes it hold on real measurements. The rest of Algorithm 1's
server (receive, aggregate, send) is that of every method with a barrier, in `synchronous.py`.

A pruning stays pending until the worker's update confirms it. A fixed table of pruned rates can
replace the learning, as in the paper's ablations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from adaptcl.errors import SettingError
from adaptcl.pruning import ORDERS, ServerView, grow, server_order
from adaptcl.pruning.budget import smallest_retention
from adaptcl.pruning.cig_bnscalor import bn_importance
from adaptcl.records import WorkerRecord
from adaptcl.settings import redeclared, setting
from adaptcl.storage import Tree
from adaptcl.strategies.adaptcl.guards import GuardedRates, GuardSettings, guarded_pruned_rates
from adaptcl.strategies.adaptcl.pruned_rate import Point, pruned_rates
from adaptcl.strategies.adaptcl.pruning_warnings import (
    warn_cannot_get_smaller,
    warn_harmful_prunings,
    warn_never_prunes,
    warn_not_worth_pruning,
    warn_slow_at_any_size,
)
from adaptcl.strategies.adaptcl.speed_history import (
    SpeedHistory,
    remember_every_size,
    remember_same_conditions,
)
from adaptcl.strategies.strategy import Job
from adaptcl.strategies.synchronous import SubModelPlan, Synchronous, SynchronousSettings
from adaptcl.training import Arrival, Pruning, Task
from adaptcl.units import flops, parameters, retention


@dataclass(frozen=True)
class AdaptCLSettings(GuardSettings, SynchronousSettings):
    """Settings of AdaptCL."""

    aggregation: str = redeclared(SynchronousSettings, "aggregation", "by-change")
    fading: float = redeclared(SynchronousSettings, "fading", 0.2)
    pruning: str = setting(
        "balanced-bnscalor", "the order in which units are pruned", choices=ORDERS, or_custom=True
    )
    pruned_rates: tuple[tuple[float, ...], ...] = setting(
        (),
        "fixed pruned rates instead of learned ones: for each pruning, one rate per worker",
        at_least=0,
        below=1,
    )
    max_importance_lost: float = setting(
        0.2,
        "warn when one pruning loses more than this share of a sub-model's importance and the "
        "loss jumps, or more than half of it",
        at_least=0,
        at_most=1,
    )
    width_multiple: int = setting(
        16,
        "prune layers to multiples of this width, which is faster on most hardware; small layers "
        "use smaller multiples",
        at_least=1,
    )


class AdaptCL(Synchronous):
    """The paper's system with our defaults; the presets `paper-*` choose the paper's own.

    Ours are the order `balanced-bnscalor`, merging by change, guards around Algorithm 2 and widths
    in multiples of 16.
    """

    summary = "a sub-model for each worker, sized from its measured update times"
    Settings: ClassVar[type[AdaptCLSettings]] = AdaptCLSettings
    unused: ClassVar[tuple[str, ...]] = ()

    def __init__(self, job: Job, settings: AdaptCLSettings) -> None:
        super().__init__(job, settings)
        _refuse(settings, job.workers)
        # Where nobody becomes faster, a sub-model that is a little too fast stays as it is.
        self.adaptcl = replace(settings, grow=False) if job.is_steady else settings
        self._order = server_order(settings.pruning)
        self._importance: Tensor | None = None
        """The importance of all units by an order that is computed only once."""
        self._decisions = 0  # how many times the server has decided on pruned rates
        literal = settings.literal_algorithm_2
        remember = remember_every_size if literal else remember_same_conditions
        self._speeds = SpeedHistory(job.workers, job.time_noise, remember)
        self._pending: dict[int, float] = {}
        """Decided rates that are in no open task: not given out yet, or never answered."""
        self._floors: dict[int, float] = {}
        """The retention at which a worker could cut nothing more."""
        self._warned_of_floor = False
        self._warned_of_gain = False
        self._warned_of_slow: set[int] = set()

    # The hooks of Synchronous ------------------------------------------------------------------

    def plan(self, worker: int) -> SubModelPlan:
        """Prune or grow a worker's sub-model if that is pending."""
        kept = self.kept[worker]
        rate = self._pending.pop(worker, 0.0)
        if rate == 0:
            return SubModelPlan(kept)
        importance = self._importance_for(worker)
        settings = self.adaptcl
        if rate > 0:
            floor, multiple = self._floor(), settings.width_multiple
            pruning = Pruning(rate, settings.pruning, importance, floor, multiple)
            if importance is not None:
                left = pruning.left(self.units, kept, importance)
                if torch.equal(left, kept):  # less than a block of units to cut
                    return SubModelPlan(kept)
            return SubModelPlan(kept, pruning, rate)
        importance = bn_importance(self.units, self.state) if importance is None else importance
        budget = (1 - rate) * parameters(self.units, kept)
        grown = grow(self.units, kept, importance, budget, settings.width_multiple)
        return SubModelPlan(grown, None, rate if bool((grown & ~kept).any()) else 0.0)

    def received(self, task: Task, arrival: Arrival, rate: float) -> None:
        """Note how long the worker took, also where its update is too late to be used."""
        worker = arrival.update.worker
        if task.pruning is not None and rate == 0:
            self._floors[worker] = retention(self.units, task.kept)
        if rate == 0:
            if not arrival.timing.is_cold:
                self._speeds.add(worker, arrival.timing.update_time)
        else:
            # A round in which the sub-model changed is a measurement of neither size. Earlier times
            # belong to the old size, so they are discarded too.
            self._speeds.discard_times(worker)

    def returned(self, worker: int) -> None:
        """Measure a worker anew: it may come back on another link or machine."""
        self._speeds.discard_times(worker)

    def undone(self, worker: int, rate: float) -> None:
        """Keep the change pending, together with what was decided since."""
        self._pending[worker] = _combine(rate, self._pending.get(worker, 0.0))

    def learn(self, records: Sequence[WorkerRecord]) -> tuple[str, ...]:
        """Before a pruning round, decide how much each worker prunes."""
        settings = self.adaptcl
        warnings = [*self.warn_nothing_to_cut(), *self._warn_never_prunes()]
        warnings += warn_harmful_prunings(self.round, records, settings.max_importance_lost)
        if settings.is_pruning_round(self.round + 1):
            if settings.pruned_rates:
                rates = self._fixed_rates()
            else:
                known = self._known_speeds()
                decided = self._learned_rates(known, settings)
                rates = self._or_pending(decided)
                # Who cannot become as fast as the fastest, whatever the target is.
                fastest = replace(settings, target_time="fastest", least_speed_up=1.0)
                needed = self._learned_rates(known, fastest)
                warnings += self._warn_not_worth_pruning(known, decided)
                warnings += self._warn_floor(self._or_pending(needed))
                warnings += self._warn_slow(needed.slow_at_any_size)
            self._pending = {worker: rate for worker, rate in enumerate(rates) if rate != 0}
            self._decisions += 1
            self._speeds.discard_all_times()
        return tuple(warnings)

    # Deciding ----------------------------------------------------------------------------------

    def _fixed_rates(self) -> Sequence[float]:
        table = self.adaptcl.pruned_rates
        row = table[self._decisions] if self._decisions < len(table) else [0.0] * self.job.workers
        # A worker that has not carried out the last pruning makes up for it.
        return [_combine(self._pending.get(worker, 0.0), rate) for worker, rate in enumerate(row)]

    def _known_speeds(self) -> dict[int, Sequence[Point]]:
        """What is remembered of each worker whose present size was measured."""
        self._speeds.average_times(self._size)
        workers = range(self.job.workers)
        return {w: self._speeds.points(w) for w in workers if self._is_measured(w)}

    def _learned_rates(
        self, known: Mapping[int, Sequence[Point]], settings: AdaptCLSettings
    ) -> GuardedRates:
        """The pruned rates of the known workers by Algorithm 2."""
        if settings.literal_algorithm_2:
            return GuardedRates(pruned_rates(known, settings), 1.0, ())
        pace = [worker for worker in known if self._is_waiting(worker)]
        stuck = [w for w, floor in self._floors.items() if floor == self._retention(w)]
        floor = max(self._floor(), self._smallest)
        return guarded_pruned_rates(known, pace, stuck, floor, settings)

    def _or_pending(self, learned: GuardedRates) -> list[float]:
        """Each worker's pruned rate; who is not known keeps what is pending."""
        workers = range(self.job.workers)
        return [learned.rates.get(w, self._pending.get(w, 0.0)) for w in workers]

    def _is_measured(self, worker: int) -> bool:
        """Whether a worker's newest point is of its present sub-model.

        The point may be old, where workers are drawn for each round. While a worker is late in
        changing its sub-model, nothing is known of the new size.
        """
        points = self._speeds.points(worker)
        if not points or self.open_rate(worker) != 0:
            return False
        is_recent = self._speeds.has_times(worker) or self._is_waiting(worker)
        return is_recent and points[-1].retention == self._retention(worker)

    def _is_waiting(self, worker: int) -> bool:
        """Whether a worker is present and has answered its last task."""
        return self.is_present(worker) and not self.is_busy(worker)

    def _size(self, worker: int) -> tuple[float, float]:
        """A worker's retention, and the share of the model's FLOPs that its sub-model needs."""
        whole = flops(self.units, self.units.everything())  # 0 where none were counted
        share = flops(self.units, self.kept[worker]) / whole if whole else 1.0
        return self._retention(worker), share

    def _retention(self, worker: int) -> float:
        return retention(self.units, self.kept[worker])

    def _floor(self) -> float:
        """The retention that a pruning must leave."""
        settings = self.adaptcl
        literal = settings.literal_min_retention or settings.literal_algorithm_2
        return 0.0 if literal or settings.pruned_rates else settings.min_retention

    # Importance --------------------------------------------------------------------------------

    def _importance_for(self, worker: int) -> Tensor | None:
        """Units by the server's order; None where each worker computes the order."""
        if self._order is None or self._importance is not None:
            return self._importance
        view = ServerView(self.units, self.state, worker, self._decisions - 1, self.job.seed)
        importance = self._order.importance(view)
        if self._order.frozen:
            self._importance = importance
        return importance

    # Warnings ----------------------------------------------------------------------------------

    def _warn_never_prunes(self) -> tuple[str, ...]:
        """In the first round, that the run ends before the first pruning."""
        first, rounds = self.adaptcl.first_pruning_round, self.rounds
        if self.round > 1 or self.units.count == 0 or first <= rounds:
            return ()
        return (warn_never_prunes(first, rounds),)

    @cached_property
    def _smallest(self) -> float:
        return smallest_retention(self.units, self.adaptcl.width_multiple)

    def _warn_not_worth_pruning(
        self, known: Mapping[int, Sequence[Point]], decided: GuardedRates
    ) -> tuple[str, ...]:
        """Once, that workers differ but too little for pruning to pay."""
        settings = self.adaptcl
        if self._warned_of_gain or settings.literal_algorithm_2:
            return ()
        anyway = self._learned_rates(known, replace(settings, least_speed_up=1.0))
        is_held_back = _prunes(anyway) and not _prunes(decided)
        is_first = all(self._retention(worker) == 1 for worker in known)
        self._warned_of_gain = is_held_back and is_first
        if not self._warned_of_gain:
            return ()
        return (warn_not_worth_pruning(anyway.speed_up, settings.least_speed_up),)

    def _warn_floor(self, rates: Sequence[float]) -> tuple[str, ...]:
        """Once, that the model does not let workers become as small as they would have to be."""
        if self._warned_of_floor or self.units.count == 0:
            return ()
        worth_it = self._smallest - self.adaptcl.min_pruned_rate
        stopped = [w for w, rate in enumerate(rates) if self._retention(w) * (1 - rate) < worth_it]
        self._warned_of_floor = bool(stopped)
        finest = smallest_retention(self.units)
        return (warn_cannot_get_smaller(self._smallest, finest, stopped),) if stopped else ()

    def _warn_slow(self, slow: Sequence[int]) -> tuple[str, ...]:
        """Once for each worker, that pruning it further would not make it faster."""
        new = [worker for worker in slow if worker not in self._warned_of_slow]
        self._warned_of_slow.update(new)
        return (warn_slow_at_any_size(new),) if new else ()

    # Checkpoints -------------------------------------------------------------------------------

    def snapshot(self) -> Tree:
        return {
            **super().snapshot(),
            "importance": self._importance,
            "decisions": self._decisions,
            **self._speeds.snapshot(),
            "pending": [[worker, rate] for worker, rate in self._pending.items()],
            "floors": [[worker, kept] for worker, kept in self._floors.items()],
            "warned_of_floor": self._warned_of_floor,
            "warned_of_gain": self._warned_of_gain,
            "warned_of_slow": sorted(self._warned_of_slow),
        }

    def restore(self, tree: Tree) -> None:
        super().restore(tree)
        self._importance = tree["importance"]
        self._decisions = tree["decisions"]
        self._speeds.restore(tree)
        self._pending = dict(tree["pending"])
        self._floors = dict(tree["floors"])
        self._warned_of_floor = tree["warned_of_floor"]
        self._warned_of_gain = tree["warned_of_gain"]
        self._warned_of_slow = set(tree["warned_of_slow"])


def _refuse(settings: AdaptCLSettings, workers: int) -> None:
    if settings.first_pruning == 1:
        raise SettingError("first_pruning is 1, but in round 1 nothing is measured yet; say 2.")
    for row in settings.pruned_rates:
        if len(row) != workers:
            raise SettingError(
                f"pruned_rates has a row of {len(row)} rates, "
                f"but it must have one for each of the {workers} workers."
            )


def _prunes(learned: GuardedRates) -> bool:
    return any(rate > 0 for rate in learned.rates.values())


def _combine(first: float, second: float) -> float:
    """The one pruned rate equal to two, one after the other; exact for 0."""
    return first + second - first * second
