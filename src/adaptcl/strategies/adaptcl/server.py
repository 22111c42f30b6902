"""AdaptCL: a sub-model for each worker, cut so that all finish together (Algorithm 1, server side).

Once every pruning interval the server looks at how long each worker took, learns from it how much
each has to prune (`rates.py`), and tells it; the worker carries it out in the following round, or
in the next one it takes part in: what was decided stays due until its update is there. What users
are told of prunings is in `harm.py`, when a pruning waits for the group lasso in `strength.py`.
A fixed table of pruned rates can take the place of the learning, as in the paper's ablations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import ClassVar

import torch
from torch import Tensor

from adaptcl.errors import SettingError
from adaptcl.pruning import ORDERS, ServerView, grow, importance_lost, prune, server_order
from adaptcl.pruning.budget import carried_out, smallest_retention
from adaptcl.pruning.cig_bnscalor import CIGBNscalor
from adaptcl.records import WorkerRecord
from adaptcl.settings import redeclared, setting
from adaptcl.storage import Tree
from adaptcl.strategies.adaptcl.guards import InVain, Noise, remember
from adaptcl.strategies.adaptcl.pruned_rate import (
    Point,
    RateSettings,
    Target,
    pruned_rate,
    target_time,
)
from adaptcl.strategies.adaptcl.pruning_warnings import (
    cannot_get_smaller,
    harmful_prunings,
    never_prunes,
)
from adaptcl.strategies.adaptcl.strength import AdaptedStrength
from adaptcl.strategies.strategy import Job, Reaction
from adaptcl.strategies.synchronous import SubModelPlan, Synchronous, SynchronousSettings
from adaptcl.training import Arrival, Pruning
from adaptcl.units import Kept, flops, parameters, retention


@dataclass(frozen=True)
class AdaptCLSettings(RateSettings, SynchronousSettings):
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
    adapt_strength: bool = setting(
        False,
        "before a pruning that would lose more than max_importance_lost, wait and raise the "
        "strength, for one pruning interval at most",
    )
    width_multiple: int = setting(
        16,
        "prune layers to multiples of this width, which is faster on most hardware; small layers "
        "use smaller multiples",
        at_least=1,
    )


class AdaptCL(Synchronous):
    """The paper's system, with its order of pruning and its merging where a preset says so."""

    summary = "a sub-model for each worker, sized from its measured update times"
    Settings: ClassVar[type[AdaptCLSettings]] = AdaptCLSettings
    unused: ClassVar[tuple[str, ...]] = ()

    def __init__(self, job: Job, settings: AdaptCLSettings) -> None:
        super().__init__(job, settings)
        if settings.first_pruning == 1:
            raise SettingError("first_pruning is 1, but in round 1 nothing is measured yet; say 2.")
        for row in settings.pruned_rates:
            if len(row) != job.workers:
                raise SettingError(
                    f"pruned_rates has a row of {len(row)} rates, "
                    f"but it must have one for each of the {job.workers} workers."
                )
        self.adaptcl = settings
        self._order = server_order(settings.pruning)
        self._importance: Tensor | None = None
        self._decisions = 0
        self._times: list[list[float]] = [[] for _ in range(job.workers)]
        """Update times since the last decision, all of the sub-model that the worker has now."""
        self._histories: list[list[Point]] = [[] for _ in range(job.workers)]
        self._noise = Noise(job.time_noise)
        self._due: dict[int, float] = {}
        """Rates decided on that are in no open task: not given yet, or given in vain."""
        self._stuck: dict[int, float] = {}
        """The retention at which a worker that was told to prune could cut nothing."""
        self._told_smallest = False
        self._in_vain = InVain()
        if settings.adapt_strength and job.recipe.strength == 0:
            raise SettingError(
                "adapt_strength raises the group lasso, but strength is 0, so there is none to "
                "raise; set strength above 0, or adapt_strength to false."
            )
        self._strength = AdaptedStrength(settings.max_importance_lost, settings.pruning_interval)

    def lasso_scale(self) -> float:
        """What the group lasso's λ is multiplied by this round."""
        return self._strength.scale

    def plan(self, worker: int) -> SubModelPlan:
        """Prune or grow a worker's sub-model, if that has been decided."""
        kept = self.kept[worker]
        rate = self._due.pop(worker, 0.0)
        if rate == 0:
            return SubModelPlan(kept)
        order = self._importance_for(worker, self._decisions - 1)
        if self._order is not None and self._order.frozen:
            self._importance = order
        if rate > 0:
            left = None if order is None else self._left(kept, rate, order)
            # Less than a block of units to cut, or to grow by, is nothing to do.
            if left is not None and torch.equal(left, kept):
                return SubModelPlan(kept)
            own = self.adaptcl
            pruning = Pruning(rate, own.pruning, order, self._least(), own.width_multiple)
            return SubModelPlan(kept, pruning, rate)
        order = self._bn_scales() if order is None else order
        budget = (1 - rate) * parameters(self.units, kept)
        grown = grow(self.units, kept, order, budget, self.adaptcl.width_multiple)
        return SubModelPlan(grown, None, rate if bool((grown & ~kept).any()) else 0.0)

    def receive(self, arrival: Arrival) -> Reaction:
        """Note what was carried out of a pruning (less than was told where γ_min stops it) and how
        long the worker took, also where its update is too late to be used."""
        update = arrival.update
        task = self._tasks[update.worker]
        if task.pruning is not None:
            done = carried_out(self.units, task.kept, update.kept, task.pruning.rate)
            self._rates[update.worker] = done
            if done == 0:
                self._stuck[update.worker] = retention(self.units, task.kept)
        if self._rates[update.worker] == 0:
            self._times[update.worker].append(arrival.timing.update_time)
        else:
            # A round in which the sub-model changed half-way says nothing about either size,
            # and an update that was late when this was decided was of the old one.
            self._times[update.worker].clear()
        return super().receive(arrival)

    def joined(self, worker: int) -> Reaction:
        """Measure who has been away anew: it may come back quite another."""
        if not self._present[worker]:
            self._times[worker].clear()
        return super().joined(worker)

    def learn(self, records: Sequence[WorkerRecord]) -> tuple[str, ...]:
        """Before a pruning round decide who prunes how much."""
        warnings = [*self.nothing_to_cut(), *self._will_never_prune()]
        warnings += harmful_prunings(self.round, records, self.adaptcl.max_importance_lost)
        if self.adaptcl.is_pruning_round(self.round + 1) or self._strength.waiting:
            rates = self._fixed_rates() if self.adaptcl.pruned_rates else self._learned_rates()
            warnings += [*self._would_have_to_be_smaller(rates), *self._in_vain.warnings()]
            if not self._is_too_early(rates):
                self._due = {w: rate for w, rate in enumerate(rates) if rate != 0}
                self._decisions += 1
                self._times = [[] for _ in self._times]
        return tuple(warnings)

    def undone(self, worker: int, rate: float) -> None:
        """The worker still owes that change, together with what was decided in the meantime."""
        self._due[worker] = _together(rate, self._due.get(worker, 0.0))

    # Deciding ----------------------------------------------------------------------------------

    def _fixed_rates(self) -> Sequence[float]:
        table = self.adaptcl.pruned_rates
        row = table[self._decisions] if self._decisions < len(table) else [0.0] * self.job.workers
        # A worker that has not carried out the last pruning makes up for it.
        return [_together(self._due.get(worker, 0.0), rate) for worker, rate in enumerate(row)]

    def _learned_rates(self) -> Sequence[float]:
        if not self._strength.waiting:  # or these were seen before
            self._noise.watch(self._times)
        for worker, times in enumerate(self._times):
            if times:
                self._histories[worker] = remember(
                    self._histories[worker],
                    Point(
                        self._retention(worker),
                        fmean(times),
                        self._noise.error(times),
                        self._flops(worker),
                    ),
                )
        # Who has not been measured since its last pruning does not set the pace, and has at most
        # the pruning before it that was decided on already.
        known = {w: self._histories[w] for w in range(self.job.workers) if self._is_known(w)}
        pace = [history for w, history in known.items() if self._is_at_hand(w)]
        target = target_time([history[-1] for history in pace], pace, self.adaptcl.grow)
        return [
            self._rate(worker, known[worker], target)
            if worker in known and pace
            else self._due.get(worker, 0.0)
            for worker in range(self.job.workers)
        ]

    def _rate(self, worker: int, history: Sequence[Point], target: Target) -> float:
        """Nothing where the worker may well be as fast as it should, else what its curve says."""
        if not history[-1].differs(target.time, target.error):
            return 0.0
        self._in_vain.look(worker, history, target.time, self.adaptcl)
        rate = pruned_rate(history, target.time, self.adaptcl)
        is_stuck = self._stuck.get(worker) == self._retention(worker)
        return min(rate, 0.0) if is_stuck else rate

    def _is_known(self, worker: int) -> bool:
        """Whether a worker's newest measurement is of the sub-model that it has now.

        It may be some time ago, where workers are drawn for each round. Of a sub-model that its
        worker is late in changing nothing is known.
        """
        if worker in self._tasks and self._rates[worker] != 0:
            return False
        if self._times[worker]:
            return True
        history = self._histories[worker]
        if not history or not self._is_at_hand(worker):
            return False
        return history[-1].retention == self._retention(worker)

    def _is_at_hand(self, worker: int) -> bool:
        """Whether a worker can set the pace: nobody waits for one that has left or is late."""
        return self._present[worker] and worker not in self._tasks

    def _retention(self, worker: int) -> float:
        return retention(self.units, self.kept[worker])

    def _flops(self, worker: int) -> float:
        """Of its sub-model, as a fraction; 1 where the model has none that were counted."""
        whole = flops(self.units, self.units.everything())
        return flops(self.units, self.kept[worker]) / whole if whole else 1.0

    def _least(self) -> float:
        """The retention that a pruning must leave."""
        as_printed = self.adaptcl.literal_min_retention or self.adaptcl.pruned_rates
        return 0.0 if as_printed else self.adaptcl.min_retention

    def _left(self, kept: Kept, rate: float, order: Tensor) -> Kept:
        multiple = self.adaptcl.width_multiple
        return prune(self.units, kept, order, rate, self._least(), multiple)

    def _is_too_early(self, rates: Sequence[float]) -> bool:
        """Whether the group lasso is given more time before these prunings."""
        if not self.adaptcl.adapt_strength:
            return False
        scales = self._bn_scales()
        lost = [0.0]
        for worker, rate in enumerate(rates):
            if rate > 0:
                # Of an order that only workers know, the scales are the best guess.
                order = self._importance_for(worker, self._decisions)
                left = self._left(self.kept[worker], rate, scales if order is None else order)
                lost.append(importance_lost(self.kept[worker], left, scales))
        return self._strength.waits(max(lost))

    def _will_never_prune(self) -> tuple[str, ...]:
        """In the first round, that it is too short a run to prune in."""
        first, rounds = self.adaptcl.first_pruning_round, self.rounds
        if self.round > 1 or self.units.count == 0 or first <= rounds:
            return ()
        return (never_prunes(first, rounds),)

    @cached_property
    def _smallest(self) -> float:
        return smallest_retention(self.units, self.adaptcl.width_multiple)

    def _would_have_to_be_smaller(self, rates: Sequence[float]) -> tuple[str, ...]:
        """Once, that the model does not let workers get as small as they would have to be."""
        if self._told_smallest or self.adaptcl.pruned_rates or self.units.count == 0:
            return ()
        worth_it = self._smallest - self.adaptcl.min_pruned_rate
        stopped = [w for w, rate in enumerate(rates) if self._retention(w) * (1 - rate) < worth_it]
        self._told_smallest = bool(stopped)
        finest = smallest_retention(self.units)
        return (cannot_get_smaller(self._smallest, finest, stopped),) if stopped else ()

    # Importance --------------------------------------------------------------------------------

    def _importance_for(self, worker: int, pruning: int) -> Tensor | None:
        """The server's order for a worker; None where workers compute their own."""
        if self._order is None or self._importance is not None:
            return self._importance
        view = ServerView(self.units, self.state, worker, pruning, self.job.seed)
        return self._order.importance(view)

    def _bn_scales(self) -> Tensor:
        """How important each unit is now, whatever the pruning order says."""
        view = ServerView(self.units, self.state, 0, self._decisions, self.job.seed)
        return CIGBNscalor().importance(view)

    # Checkpoints -------------------------------------------------------------------------------

    def snapshot(self) -> Tree:
        """All that is needed to go on."""
        return {
            "synchronous": super().snapshot(),
            "importance": self._importance,
            "decisions": self._decisions,
            "times": [list(times) for times in self._times],
            "histories": [
                [[p.retention, p.update_time, p.error, p.flops] for p in h] for h in self._histories
            ],
            "noise": self._noise.snapshot(),
            "due": [[worker, rate] for worker, rate in self._due.items()],
            "stuck": [[worker, kept] for worker, kept in self._stuck.items()],
            "told_smallest": self._told_smallest,
            "in_vain": self._in_vain.snapshot(),
            "strength": self._strength.snapshot(),
        }

    def restore(self, tree: Tree) -> None:
        """Go on from a snapshot."""
        super().restore(tree["synchronous"])
        self._importance = tree["importance"]
        self._decisions = tree["decisions"]
        self._times = tree["times"]
        self._histories = [[Point(*point) for point in h] for h in tree["histories"]]
        self._noise.restore(tree["noise"])
        self._due = dict(tree["due"])
        self._stuck = dict(tree["stuck"])
        self._told_smallest = tree["told_smallest"]
        self._in_vain.restore(tree["in_vain"])
        self._strength.restore(tree["strength"])


def _together(first: float, second: float) -> float:
    """The one pruned rate that comes to the same as two, one after the other; exact for 0."""
    return first + second - first * second
