"""AdaptCL's server: a sub-model for each worker, cut so that all finish together.

The paper prints Algorithm 1 of the server so. `AdaptCL` has the lines about pruning; the others are
those of every method with a barrier, in `synchronous.py`, and of every method, in `strategy.py`.

    1  for each round t = 1 … T:                        `Synchronous._begin_round`
    2      while not receiving all updates:             `Synchronous._close_if_complete`
    3          receive θ_w and I_w, calculate φ_w       `Synchronous.receive`, `AdaptCL.received`
    4      θ_g ← ModelAggregate(θ_1 … θ_W)              `Synchronous._close`, `aggregation.py`
    5      if it is pruning round:                      `AdaptCL.learn`
    6          obtain P_1 … P_W with Algorithm 2        `AdaptCL._learned_rates`
    7      for each worker w = 1 … W:                   `Synchronous._ask`
    8          θ_w ← θ_g ⊙ I_w                          `BaseStrategy._cut`
    9          send θ_w and P_w to worker w             `AdaptCL.plan`; the loop sends the task

θ_g is the global model, θ_w a worker's sub-model, I_w its kept units, φ_w its update time and P_w
its pruned rate. P_w stays pending until the worker's update confirms it.

Algorithm 2 as printed is in `pruned_rate.py`; by default `guards.py` decides, which makes it hold
on real measurements.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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
from adaptcl.settings import redeclared, refuse_other_count, setting
from adaptcl.strategies.adaptcl.guards import GuardedRates, GuardSettings, guarded_pruned_rates
from adaptcl.strategies.adaptcl.pruned_rate import pruned_rates
from adaptcl.strategies.adaptcl.pruning_warnings import (
    WarningsOnce,
    warn_harmful_prunings,
    warn_never_prunes,
)
from adaptcl.strategies.adaptcl.speed_history import (
    Point,
    SpeedHistory,
    remember_every_size,
    remember_same_conditions,
    size_of,
)
from adaptcl.strategies.strategy import Job
from adaptcl.strategies.synchronous import SubModelPlan, Synchronous, SynchronousSettings
from adaptcl.training import Arrival, Pruning, Task
from adaptcl.units import Kept, parameters, retention


@dataclass(frozen=True)
class AdaptCLSettings(GuardSettings, SynchronousSettings):
    """In which order units are pruned, in blocks of which width, and what is warned of."""

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
        "warn when a pruning removes more than this share of a sub-model's importance and the loss "
        "jumps; above three quarters, warn in any case",
        at_least=0,
        at_most=1,
    )
    width_multiple: int = setting(
        16,
        "prune layers to multiples of this width, which is faster on most hardware; small layers "
        "use smaller multiples",
        at_least=1,
    )

    @property
    def prunes_for_any_gain(self) -> bool:
        """Whether pruning needs no speed-up to pay, so that training is sparse from the start."""
        is_given = bool(self.pruned_rates) or self.literal_algorithm_2
        return is_given or self.least_speed_up == 1


class AdaptCL(Synchronous):
    """The paper's system, as the presets `paper-*` set it.

    Without a preset it has the order `balanced-bnscalor`, merging by change, guards around
    Algorithm 2 and widths in multiples of 16.
    """

    summary = "a sub-model for each worker, sized from its measured update times"
    Settings: ClassVar[type[AdaptCLSettings]] = AdaptCLSettings
    settings: AdaptCLSettings
    unused: ClassVar[tuple[str, ...]] = ()
    remembered: ClassVar[tuple[str, ...]] = (
        *Synchronous.remembered,
        *("_importance", "_decisions", "_speeds", "_pending", "_stuck_at"),
        *("_is_pruning_worth_it", "_warnings_once"),
    )

    def __init__(self, job: Job, settings: AdaptCLSettings) -> None:
        # Where nobody becomes faster, a sub-model that is a little too fast stays as it is.
        super().__init__(job, replace(settings, grow=settings.grow and not job.is_steady))
        if settings.first_pruning == 1:
            raise SettingError("first_pruning is 1, but in round 1 nothing is measured yet; say 2.")
        for row in settings.pruned_rates:
            refuse_other_count(f"pruned_rates has a row of {len(row)} rates", len(row), job.workers)
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
        self._is_pruning_worth_it = settings.prunes_for_any_gain
        """Where it is not, sparse training would cost accuracy and make nobody faster. Nobody knows
        before times are measured, so round 1 is as FedAVG's."""
        self._warnings_once = WarningsOnce()

    # The hooks of Synchronous ------------------------------------------------------------------

    def plan(self, worker: int) -> SubModelPlan:
        """Prune or grow a worker's sub-model if that is pending."""
        kept, growth = self.kept[worker], 0.0
        rate = self._pending.pop(worker, 0.0)
        if rate > 0:
            if pruning := self._pruning(worker, rate):
                return SubModelPlan(kept, pruning)
            self._stuck_at[worker] = self._retention(worker)
        if rate < 0:
            grown = self._grown(worker, -rate)
            growth = -rate if bool((grown & ~kept).any()) else 0.0
            kept = grown
        return SubModelPlan(kept, growth=growth, is_sparse=self._is_pruning_worth_it)

    def received(self, task: Task, arrival: Arrival, rate: float) -> None:
        """Note how long the worker took, also where its update is too late to be used."""
        worker = arrival.update.worker
        if task.pruning is not None and rate == 0:
            self._stuck_at[worker] = retention(self.units, task.kept)
        if rate != 0:
            # A round in which the sub-model changed is a measurement of neither size. Earlier times
            # belong to the old size, so they are discarded too.
            self._speeds.forget_times(worker)
        elif not arrival.timing.is_cold:
            self._speeds.add(worker, arrival.timing.update_time)

    def learn(self, records: Sequence[WorkerRecord]) -> tuple[str, ...]:
        """Before a pruning round, decide how much each worker prunes."""
        settings = self.settings
        warnings = [*self.warn_nothing_to_cut()]
        if self.round == 1 and self.units.count > 0:
            warnings += warn_never_prunes(settings.first_pruning_round, self.rounds)
        warnings += warn_harmful_prunings(self.round, records, settings.max_importance_lost)
        if self.round == self.rounds:
            return tuple(warnings)  # nobody prunes any more
        if settings.is_pruning_round(self.round + 1):
            warnings += self._decide()
        elif self.round == 1 and not settings.prunes_for_any_gain:
            self._measure()  # to know whether to train sparsely until then
        return tuple(warnings)

    def returned(self, worker: int) -> None:
        """Measure a worker anew: it may come back on another link or machine."""
        self._speeds.forget_times(worker)

    def undone(self, worker: int, rate: float) -> None:
        """Keep the change pending, together with what was decided since."""
        self._pending[worker] = _combine(rate, self._pending.get(worker, 0.0))

    # Pruning and growing -----------------------------------------------------------------------

    def _pruning(self, worker: int, rate: float) -> Pruning | None:
        """A worker's pruning; None if nothing more can be cut from its sub-model."""
        settings, kept, importance = self.settings, self.kept[worker], self._importance_for(worker)
        least, multiple = self._min_retention(), settings.width_multiple
        pruning = Pruning(rate, settings.pruning, importance, least, multiple)
        if importance is None:
            return pruning
        left = pruning.units_left(self.units, kept, importance)
        return None if torch.equal(left, kept) else pruning

    def _grown(self, worker: int, growth: float) -> Kept:
        """A worker's kept units and the most important others, as far as this share goes."""
        kept, importance = self.kept[worker], self._importance_for(worker)
        importance = bn_importance(self.units, self.state) if importance is None else importance
        budget = (1 + growth) * parameters(self.units, kept)
        return grow(self.units, kept, importance, budget, self.settings.width_multiple)

    # Deciding ----------------------------------------------------------------------------------

    def _decide(self) -> list[str]:
        """Decide how much each worker prunes; returns warnings."""
        warnings: list[str] = []
        if self.settings.pruned_rates:
            rates = self._fixed_rates()
        else:
            learned = self._measure()
            rates = self._or_pending(learned)
            warnings = self._warn_of(learned)
        self._pending = {worker: rate for worker, rate in enumerate(rates) if rate != 0}
        if any(rate > 0 for rate in rates):
            warnings += self._warnings_once.unmeasured(self.settings.pruning, self.units)
        self._decisions += 1
        for worker in range(self.job.workers):
            self._speeds.forget_times(worker)
        return warnings

    def _measure(self) -> GuardedRates:
        """Learn from the times since the last decision, also whether pruning pays."""
        self._speeds.average_times(lambda worker: size_of(self.units, self.kept[worker]))
        learned = self._learned_rates(self.settings)
        if learned.rates:
            self._is_pruning_worth_it = learned.is_worth_it
        return learned

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
        stuck = [worker for worker in self._stuck_at if self._is_stuck(worker)]
        reachable = max(self._min_retention(), self._smallest)
        return guarded_pruned_rates(known, pace, stuck, reachable, settings)

    def _warn_of(self, decided: GuardedRates) -> list[str]:
        """Warnings about a decision: other settings would decide something else."""
        settings, once = self.settings, self._warnings_once
        for_any_gain = replace(settings, least_speed_up=1.0)
        warnings: list[str] = []
        anyway = self._learned_rates(for_any_gain)
        if all(self._retention(worker) == 1 for worker in anyway.rates):
            warnings += once.little_gain(decided, anyway, settings.least_speed_up)
        # Who cannot become as fast as the fastest, whatever the target is.
        to_fastest = self._learned_rates(replace(for_any_gain, target_time="fastest"))
        if self.units.count > 0:
            rates = enumerate(self._or_pending(to_fastest))
            wanted = [self._retention(worker) * (1 - rate) for worker, rate in rates]
            accepted = self._smallest - settings.min_pruned_rate
            warnings += once.too_large(wanted, accepted, self.units, settings.width_multiple)
        slow = to_fastest.slow_at_any_size
        return [*warnings, *once.slow_at_any_size(slow), *self._warn_of_floor(except_for=slow)]

    def _warn_of_floor(self, except_for: Collection[int]) -> tuple[str, ...]:
        """Whom γ_min alone keeps from being as fast as the fastest, and so the others waiting."""
        floor = self._min_retention()
        if floor <= self._smallest:
            return ()  # the model sets the limit
        known, accepted = self._known_speeds(), floor + self.settings.min_pruned_rate
        times = {w: known[w][-1].update_time for w in known if self._is_waiting(w)}
        ends = [w for w in known if self._retention(w) < accepted or self._is_stuck(w)]
        smallest = [w for w in ends if w not in except_for]
        return self._warnings_once.slow_at_the_floor(times, smallest, floor)

    def _or_pending(self, learned: GuardedRates) -> list[float]:
        """Each worker's learned rate; where none was learned, the pending one."""
        workers = range(self.job.workers)
        return [learned.rates.get(w, self._pending.get(w, 0.0)) for w in workers]

    def _known_speeds(self) -> Mapping[int, Sequence[Point]]:
        """The points of each worker whose newest point was measured with its present sub-model.

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

    def _is_stuck(self, worker: int) -> bool:
        """Whether a worker could cut nothing more from its present sub-model."""
        return self._stuck_at.get(worker) == self._retention(worker)

    def _retention(self, worker: int) -> float:
        return retention(self.units, self.kept[worker])

    def _min_retention(self) -> float:
        """γ_min, which a pruning must leave; 0 where it may fall below."""
        settings = self.settings
        may_fall = settings.literal_algorithm_2 or settings.pruned_rates
        return 0.0 if may_fall else settings.min_retention

    @cached_property
    def _smallest(self) -> float:
        return smallest_retention(self.units, self.settings.width_multiple)

    def _importance_for(self, worker: int) -> Tensor | None:
        """Units by the server's order; None where each worker computes the order."""
        if self._order is None or self._importance is not None:
            return self._importance
        view = ServerView(self.units, self.state, worker, self._decisions - 1, self.job.seed)
        importance = self._order.importance(view)
        if self._order.computed == "once":
            self._importance = importance
        return importance


def _combine(first: float, second: float) -> float:
    """The rate that cuts as much as `first` and then `second`: 1 − (1 − first)(1 − second).

    Written so that a rate of 0 changes nothing.
    """
    return first + second - first * second
