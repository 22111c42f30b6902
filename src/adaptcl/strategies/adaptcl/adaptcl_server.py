"""AdaptCL's server: a sub-model for each worker, cut so that all finish together (Algorithm 1).

Once every pruning interval the server looks at how long each worker took, learns how much each has
to prune, and asks for it in the worker's next task. Algorithm 2 as printed is in `pruned_rate.py`;
by default `guards.py` decides, which makes it hold on real measurements. The rest of Algorithm 1's
server (receive, aggregate, send) is that of every method with a barrier, in `synchronous.py`.

A pruning stays pending until the worker's update confirms it.
"""

from __future__ import annotations

import math
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
        "loss jumps, or more than three quarters of it",
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
    settings: AdaptCLSettings
    unused: ClassVar[tuple[str, ...]] = ()

    def __init__(self, job: Job, settings: AdaptCLSettings) -> None:
        # Where nobody becomes faster, a sub-model that is a little too fast stays as it is.
        super().__init__(job, replace(settings, grow=settings.grow and not job.is_steady))
        if settings.first_pruning == 1:
            raise SettingError("first_pruning is 1, but in round 1 nothing is measured yet; say 2.")
        for row in settings.pruned_rates:
            if len(row) != job.workers:
                raise SettingError(
                    f"pruned_rates has a row of {len(row)} rates, "
                    f"but it must have one for each of the {job.workers} workers."
                )
        self._order = server_order(settings.pruning)
        self._importance: Tensor | None = None
        """The importance of all units by an order that is computed only once."""
        self._decisions = 0  # how many times the server has decided on pruned rates
        literal = settings.literal_algorithm_2
        remember = remember_every_size if literal else remember_same_conditions
        self._speeds = SpeedHistory(job.workers, job.time_noise, remember)
        self._pending: dict[int, float] = {}
        """Decided rates that are in no open task: not given out yet, or never answered."""
        self._stuck_at: dict[int, float] = {}
        """The retention at which a worker could cut nothing more."""
        self._is_pruning_worth_it = True
        """Where it is not, sparse training would cost accuracy and make nobody faster."""
        self._warned_of_floor = False
        self._warned_of_gain = False
        self._warned_of_slow: set[int] = set()

    # The hooks of Synchronous ------------------------------------------------------------------

    def plan(self, worker: int) -> SubModelPlan:
        """Prune or grow a worker's sub-model if that is pending."""
        kept = self.kept[worker]
        rate = self._pending.pop(worker, 0.0)
        if rate == 0:
            return SubModelPlan(kept, is_sparse=self._is_pruning_worth_it)
        importance = self._importance_for(worker)
        settings = self.settings
        if rate > 0:
            least, multiple = self._min_retention(), settings.width_multiple
            pruning = Pruning(rate, settings.pruning, importance, least, multiple)
            if importance is not None:
                left = pruning.units_left(self.units, kept, importance)
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
            self._stuck_at[worker] = retention(self.units, task.kept)
        if rate != 0:
            # A round in which the sub-model changed is a measurement of neither size. Earlier times
            # belong to the old size, so they are discarded too.
            self._speeds.times[worker].clear()
        elif not arrival.timing.is_cold:
            self._speeds.add(worker, arrival.timing.update_time)

    def returned(self, worker: int) -> None:
        """Measure a worker anew: it may come back on another link or machine."""
        self._speeds.times[worker].clear()

    def undone(self, worker: int, rate: float) -> None:
        """Keep the change pending, together with what was decided since."""
        self._pending[worker] = _combine(rate, self._pending.get(worker, 0.0))

    def learn(self, records: Sequence[WorkerRecord]) -> tuple[str, ...]:
        """Before a pruning round, decide how much each worker prunes."""
        settings = self.settings
        warnings = [*self.warn_nothing_to_cut(), *self._warn_never_prunes()]
        warnings += warn_harmful_prunings(self.round, records, settings.max_importance_lost)
        if not settings.is_pruning_round(self.round + 1):
            return tuple(warnings)
        if settings.pruned_rates:
            rates = self._fixed_rates()
        else:
            self._speeds.average_times(self._size)
            decided = self._learned_rates(settings)
            rates = self._or_pending(decided)
            if decided.rates:
                self._is_pruning_worth_it = decided.is_worth_it
            # Who cannot become as fast as the fastest, whatever the target is.
            paper = replace(settings, target_time="fastest", least_speed_up=1.0)
            needed = self._learned_rates(paper)
            warnings += self._warn_not_worth_pruning(decided)
            warnings += self._warn_floor(self._or_pending(needed))
            warnings += self._warn_slow(needed.slow_at_any_size)
        self._pending = {worker: rate for worker, rate in enumerate(rates) if rate != 0}
        self._decisions += 1
        self._speeds.times = [[] for _ in rates]
        return tuple(warnings)

    # Deciding ----------------------------------------------------------------------------------

    def _fixed_rates(self) -> list[float]:
        table = self.settings.pruned_rates
        row = table[self._decisions] if self._decisions < len(table) else [0.0] * self.job.workers
        # A worker that has not carried out the last pruning makes up for it.
        return [_combine(self._pending.get(worker, 0.0), rate) for worker, rate in enumerate(row)]

    def _learned_rates(self, settings: AdaptCLSettings) -> GuardedRates:
        """The pruned rates by Algorithm 2 of all workers whose present size was measured."""
        known = self._known_speeds()
        if settings.literal_algorithm_2:
            return GuardedRates(pruned_rates(known, settings))
        pace = [worker for worker in known if self._is_waiting(worker)]
        stuck = [w for w, size in self._stuck_at.items() if size == self._retention(w)]
        reachable = max(self._min_retention(), self._smallest)
        return guarded_pruned_rates(known, pace, stuck, reachable, settings)

    def _or_pending(self, learned: GuardedRates) -> list[float]:
        """Each worker's pruned rate; who is not known keeps what is pending."""
        workers = range(self.job.workers)
        return [learned.rates.get(w, self._pending.get(w, 0.0)) for w in workers]

    def _known_speeds(self) -> Mapping[int, Sequence[Point]]:
        """The points of each worker of whose present sub-model the newest is.

        The point may be old, where workers are drawn for each round. While a worker is late in
        changing its sub-model, nothing is known of the new size.
        """
        return {
            worker: points
            for worker, points in enumerate(self._speeds.points)
            if points
            and self.open_rate(worker) == 0
            and (self._speeds.times[worker] or self._is_waiting(worker))
            and points[-1].retention == self._retention(worker)
        }

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

    def _min_retention(self) -> float:
        """γ_min, which a pruning must leave; 0 where it may fall below."""
        settings = self.settings
        literal = settings.literal_min_retention or settings.literal_algorithm_2
        return 0.0 if literal or settings.pruned_rates else settings.min_retention

    @cached_property
    def _smallest(self) -> float:
        return smallest_retention(self.units, self.settings.width_multiple)

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
        first, rounds = self.settings.first_pruning_round, self.rounds
        if self.round > 1 or self.units.count == 0 or first <= rounds:
            return ()
        remedy = "raise `rounds`" if rounds < 2 else f"set `first_pruning` to {rounds} or less"
        last = f"the last of {rounds} rounds" if rounds > 1 else "the only round"
        return (
            f"Nobody will prune: the first pruning would be in round {first}, after {last}; "
            f"{remedy}.",
        )

    def _warn_not_worth_pruning(self, decided: GuardedRates) -> tuple[str, ...]:
        """Once, that workers differ but too little for pruning to pay."""
        settings = self.settings
        if self._warned_of_gain or settings.literal_algorithm_2:
            return ()
        anyway = self._learned_rates(replace(settings, least_speed_up=1.0))
        would_prune, prunes = (
            max(each.rates.values(), default=0) > 0 for each in (anyway, decided)
        )
        is_first = all(self._retention(worker) == 1 for worker in anyway.rates)
        self._warned_of_gain = would_prune and not prunes and is_first
        if not self._warned_of_gain:
            return ()
        return (
            f"Nobody is pruned: rounds would become only {anyway.speed_up:.2f} times as fast, "
            "which does not make up for what smaller models learn less; `least_speed_up` "
            f"({settings.least_speed_up:g}) sets the limit.",
        )

    def _warn_floor(self, rates: Sequence[float]) -> tuple[str, ...]:
        """Once, that the model does not let workers become as small as they would have to be."""
        if self._warned_of_floor or self.units.count == 0:
            return ()
        worth_it = self._smallest - self.settings.min_pruned_rate
        stopped = [w for w, rate in enumerate(rates) if self._retention(w) * (1 - rate) < worth_it]
        self._warned_of_floor = bool(stopped)
        unit_by_unit = smallest_retention(self.units)
        return (warn_cannot_get_smaller(self._smallest, unit_by_unit, stopped),) if stopped else ()

    def _warn_slow(self, slow: Sequence[int]) -> tuple[str, ...]:
        """Once for each worker, that pruning it further would not make it faster."""
        new = [worker for worker in slow if worker not in self._warned_of_slow]
        self._warned_of_slow.update(new)
        if not new:
            return ()
        whose, who = (
            ("its sub-model", "it is") if len(new) == 1 else ("their sub-models", "they are")
        )
        return (
            f"The update time of {_names(new)} does not depend on the size of {whose}, so {who} "
            "not pruned any further, and the others wait; the cause may be latency, or a processor "
            "that is not faster with fewer units.",
        )

    # Checkpoints -------------------------------------------------------------------------------

    def snapshot(self) -> Tree:
        return {
            **super().snapshot(),
            "importance": self._importance,
            "decisions": self._decisions,
            **self._speeds.snapshot(),
            "pending": [[worker, rate] for worker, rate in self._pending.items()],
            "floors": [[worker, size] for worker, size in self._stuck_at.items()],
            "is_pruning_worth_it": self._is_pruning_worth_it,
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
        self._stuck_at = dict(tree["floors"])
        self._is_pruning_worth_it = tree["is_pruning_worth_it"]
        self._warned_of_floor = tree["warned_of_floor"]
        self._warned_of_gain = tree["warned_of_gain"]
        self._warned_of_slow = set(tree["warned_of_slow"])


def _combine(first: float, second: float) -> float:
    """The one pruned rate equal to two, one after the other; exact for 0."""
    return first + second - first * second


# Warnings about prunings ------------------------------------------------------------------------

_HARMFUL_JUMP = 1.0
"""A loss that rises by this much in a pruning (in nats; guessing among ten classes costs 2.3) shows
that the sub-model has forgotten what it knew."""

_MOST_LOST = 0.75
"""The share of the importance that no pruning should cut away at once, whatever the loss says: a
model that has hardly learned anything has no loss to rise. Where all layers can be cut, a pruning
to a fifth of the parameters takes less than 0.6 and does no harm (docs/how-it-works.md)."""


def warn_harmful_prunings(
    round_: int, records: Sequence[WorkerRecord], limit: float
) -> tuple[str, ...]:
    """One sentence on the most harmful pruning of a round, if one lost more than `limit`."""
    most = max(limit, _MOST_LOST)
    jumped = [r for r in records if _lost(r) > limit and (r.loss_jump or 0) > _HARMFUL_JUMP]
    gone = [r for r in records if _lost(r) > most and r not in jumped]
    if not jumped and not gone:
        return ()
    worst = max(jumped or gone, key=_lost)
    enough = max([_enough(r, limit) for r in jumped] + [_enough(r, most) for r in gone])
    sentence = (
        f"Round {round_}: {len(jumped + gone)} of {len(records)} workers pruned units that matter; "
        f"worker {worst.worker} cut away {_lost(worst):.0%} of its sub-model's importance"
    )
    if jumped:
        return (
            f"{sentence} and its loss rose by {worst.loss_jump:.2f}. Raise `min_retention` to "
            f"{enough:.2f} to cut less or, in a run of many rounds, `strength`.",
        )
    return (f"{sentence}. Raise `min_retention` to {enough:.2f} to cut less.",)


def _lost(record: WorkerRecord) -> float:
    return record.importance_lost or 0.0


def _enough(record: WorkerRecord, allowed: float) -> float:
    """A retention at which this pruning would have cut away no more importance than is allowed.

    The least important units go first, so a part of a pruning takes a smaller part of the
    importance. A straight line between no pruning and this one is therefore on the safe side.
    """
    before = min(1.0, record.retention / (1 - record.pruned_rate))
    enough = before - (before - record.retention) * allowed / _lost(record)
    return math.ceil(100 * enough) / 100


def warn_cannot_get_smaller(smallest: float, unit_by_unit: float, workers: Sequence[int]) -> str:
    """`unit_by_unit` is the smallest retention if units were not cut in blocks."""
    is_coarse = f"{smallest:.0%}" != f"{unit_by_unit:.0%}"
    finer = f" ({unit_by_unit:.0%} with `width_multiple` 1)" if is_coarse else ""
    return (
        f"Only {1 - smallest:.0%} of this model's parameters can be cut: {_names(workers)} cannot "
        f"get below {smallest:.0%}{finer}, but would have to in order to keep up; "
        "`adaptcl.describe(model, example)` says which layers are never cut, and why."
    )


def _names(workers: Sequence[int]) -> str:
    who = "worker " if len(workers) == 1 else "workers "
    return who + " and ".join(filter(None, (", ".join(map(str, workers[:-1])), str(workers[-1]))))
