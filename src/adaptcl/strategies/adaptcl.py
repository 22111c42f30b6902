"""AdaptCL: a sub-model for each worker, cut so that all finish together (Algorithm 1, server side).

Once every pruning interval the server looks at how long each worker took, learns from it how much
each has to prune (`rates.py`), and tells it; the worker carries it out in the following round, or
in the next one it takes part in: what was decided stays due until its update is there.
A fixed table of pruned rates can take the place of the learning, as in the paper's ablations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from adaptcl.errors import SettingError
from adaptcl.pruning import ORDERS, ServerView, grow, importance_lost, prune, server_order
from adaptcl.pruning.cig_bnscalor import CIGBNscalor
from adaptcl.records import WorkerRecord
from adaptcl.settings import setting
from adaptcl.snapshot import Tree
from adaptcl.strategies.rates import Point, RateSettings, pruned_rate, target_time
from adaptcl.strategies.strategy import Job
from adaptcl.strategies.synchronous import Plan, Synchronous, SynchronousSettings
from adaptcl.training import Pruning
from adaptcl.units import Kept, parameters, retention

_CHANGED = 0.1
"""An update time that differs this much (relative) at the same retention means the worker, not
its sub-model, has changed: what was learned before no longer holds."""

_HARMFUL_JUMP = 1.0
"""A loss that rises by this much in a pruning (in nats; guessing among ten classes costs 2.3)
says that the sub-model has forgotten what it knew."""


@dataclass(frozen=True)
class AdaptCLSettings(RateSettings, SynchronousSettings):
    """Settings of AdaptCL."""

    pruning: str = setting("cig-bnscalor", "the pruning order", choices=ORDERS)
    pruned_rates: tuple[tuple[float, ...], ...] = setting(
        (),
        "a fixed table in place of learning: one list of pruned rates, by worker, for each pruning",
        at_least=0,
        below=1,
    )
    max_importance_lost: float = setting(
        0.2,
        "the share of a sub-model's importance above which cutting it at once is warned of, if "
        "the loss jumps too, and with adapt_strength waited with",
        at_least=0,
        at_most=1,
    )
    adapt_strength: bool = setting(
        False,
        "choose the strength: before a pruning that would lose more than max_importance_lost, "
        "raise the group lasso round by round and prune only when it has done its work",
    )
    width_multiple: int = setting(
        16,
        "prune layers to multiples of this width, which hardware computes faster; halved for a "
        "layer until so many units are at most 2 % of the model and a quarter of the layer",
        at_least=1,
    )


class AdaptCL(Synchronous):
    """The paper's system."""

    summary = "a sub-model for each worker, sized from its measured update times"
    Settings: ClassVar[type[AdaptCLSettings]] = AdaptCLSettings

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
        self._due: dict[int, float] = {}
        """Rates decided on that are in no open task: not given yet, or given in vain."""
        self._scale = 1.0
        self._postponed = 0

    def lasso_scale(self) -> float:
        """What the group lasso's λ is multiplied by this round."""
        return self._scale

    def plan(self, worker: int) -> Plan:
        """Prune or grow a worker's sub-model, if that has been decided."""
        kept = self.kept[worker]
        rate = self._due.pop(worker, 0.0)
        if rate > 0:
            as_printed = self.adaptcl.literal_min_retention or self.adaptcl.pruned_rates
            least = 0.0 if as_printed else self.adaptcl.min_retention
            order = self._importance_for(worker)
            pruning = Pruning(rate, self.adaptcl.pruning, order, least, self.adaptcl.width_multiple)
            return Plan(kept, pruning, rate)
        if rate < 0:
            order = self._importance_for(worker)
            order = self._bn_scales() if order is None else order
            budget = (1 - rate) * parameters(self.units, kept)
            grown = grow(self.units, kept, order, budget, self.adaptcl.width_multiple)
            # Less than a block of units to grow by is nothing to grow by.
            return Plan(grown, None, rate if bool((grown & ~kept).any()) else 0.0)
        return Plan(kept)

    def learn(self, records: Sequence[WorkerRecord]) -> tuple[str, ...]:
        """Remember the update times; before a pruning round decide who prunes how much."""
        for record in records:
            if record.pruned_rate == 0:
                self._times[record.worker].append(record.update_time_s)
            else:
                # A round in which the sub-model changed half-way says nothing about either size,
                # and an update that was late when this was decided was of the old one.
                self._times[record.worker].clear()
        if self.adaptcl.is_pruning_round(self.round + 1) or self._postponed:
            rates = self._fixed_rates() if self.adaptcl.pruned_rates else self._learned_rates()
            if self._too_early(rates):
                self._scale *= 1.5
                self._postponed += 1
            else:
                self._due = {w: rate for w, rate in enumerate(rates) if rate != 0}
                self._decisions += 1
                self._postponed = 0
                self._times = [[] for _ in self._times]
        return (*self.nothing_to_cut(), *self._warnings(records))

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
        for worker, times in enumerate(self._times):
            if times:
                self._remember(worker, Point.measured(self._retention(worker), times))
        # Who has not been measured since its last pruning does not set the pace, and has at most
        # the pruning before it that was decided on already.
        known = {w: self._histories[w] for w in range(self.job.workers) if self._is_known(w)}
        histories = list(known.values())
        latest = [history[-1] for history in histories]
        target = target_time(latest, histories, self.adaptcl.grow)
        error = min(latest, key=lambda point: point.update_time).error if latest else 0.0
        return [
            self._rate(known[worker], target, error)
            if worker in known
            else self._due.get(worker, 0.0)
            for worker in range(self.job.workers)
        ]

    def _rate(self, history: Sequence[Point], target: float, error: float) -> float:
        """Nothing where the worker may well be as fast as it should, else what its curve says."""
        if not history[-1].differs(target, error):
            return 0.0
        return pruned_rate(history, target, self.adaptcl)

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
        if not history or not self._present[worker] or worker in self._tasks:
            return False
        return history[-1].retention == self._retention(worker)

    def _remember(self, worker: int, point: Point) -> None:
        history = self._histories[worker]
        if history and history[-1].retention == point.retention:
            last = history.pop()
            gap = abs(point.update_time - last.update_time)
            if gap > _CHANGED * last.update_time and point.differs(last.update_time, last.error):
                history.clear()
        history.append(point)

    def _retention(self, worker: int) -> float:
        return retention(self.units, self.kept[worker])

    def _too_early(self, rates: Sequence[float]) -> bool:
        """Whether the group lasso should be given more time before these prunings."""
        if not self.adaptcl.adapt_strength or self._postponed >= self.adaptcl.pruning_interval:
            return False
        scales = self._bn_scales()
        return any(
            self._importance_lost(kept, rate, scales) > self.adaptcl.max_importance_lost
            for kept, rate in zip(self.kept, rates, strict=True)
            if rate > 0
        )

    def _importance_lost(self, kept: Kept, rate: float, scales: Tensor) -> float:
        left = prune(self.units, kept, scales, rate, width_multiple=self.adaptcl.width_multiple)
        return importance_lost(kept, left, scales)

    def _warnings(self, records: Sequence[WorkerRecord]) -> tuple[str, ...]:
        """One sentence on the most harmful pruning of the round, if any was.

        Much importance can go without harm where the rest makes up for it, so both must be seen:
        importance lost, and a loss that jumps.
        """
        harmful = [
            record
            for record in records
            if (record.importance_lost or 0) > self.adaptcl.max_importance_lost
            and (record.loss_jump or 0) > _HARMFUL_JUMP
        ]
        if not harmful:
            return ()
        worst = max(harmful, key=lambda record: record.loss_jump or 0)
        return (
            f"Round {self.round}: {len(harmful)} of {len(records)} workers pruned units that "
            f"matter; worker {worst.worker} cut away {worst.importance_lost:.0%} of its "
            f"sub-model's importance and its loss rose by {worst.loss_jump:.2f}. Raise `strength`, "
            "or set `adapt_strength` to have it chosen.",
        )

    # Importance --------------------------------------------------------------------------------

    def _importance_for(self, worker: int) -> Tensor | None:
        """The server's order for a worker; None where workers compute their own."""
        if self._order is None:
            return None
        if self._importance is not None:
            return self._importance
        view = ServerView(self.units, self.state, worker, self._decisions - 1, self.job.seed)
        importance = self._order.importance(view)
        if self._order.frozen:
            self._importance = importance
        return importance

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
                [[p.retention, p.update_time, p.error] for p in h] for h in self._histories
            ],
            "due": [[worker, rate] for worker, rate in self._due.items()],
            "scale": self._scale,
            "postponed": self._postponed,
        }

    def restore(self, tree: Tree) -> None:
        """Go on from a snapshot."""
        super().restore(tree["synchronous"])
        self._importance = tree["importance"]
        self._decisions = tree["decisions"]
        self._times = tree["times"]
        self._histories = [[Point(*point) for point in h] for h in tree["histories"]]
        self._due = dict(tree["due"])
        self._scale = tree["scale"]
        self._postponed = tree["postponed"]


def _together(first: float, second: float) -> float:
    """The one pruned rate that comes to the same as two, one after the other; exact for 0."""
    return first + second - first * second
