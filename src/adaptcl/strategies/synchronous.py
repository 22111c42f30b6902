"""Strategies with a barrier: send tasks to all workers, wait for the answers, merge, next round.

FedAVG (McMahan et al., 2017) is `Synchronous` and nothing more: all workers train the whole model
and the server averages. AdaptCL, HeteroFL, FedRolex, FLuID and custom strategies override its
hooks: which sub-model a worker gets, what becomes of the merged model, what is learned from a
round. They read its views and never its protected members.

A round closes with the last answer, or at a deadline with those who have answered
(docs/environments.md). "All workers" may be a few that are drawn for each round
(docs/strategies.md).

The published FedAVG does not treat batch norm. Here the standard deviations of units are averaged
instead of their variances, as in all strategies with a barrier, so that results are comparable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from adaptcl.errors import SettingError
from adaptcl.pruning.budget import achieved_rate
from adaptcl.pruning.similarity import mean_similarity
from adaptcl.records import WorkerRecord
from adaptcl.seeds import generator
from adaptcl.settings import When, setting
from adaptcl.storage import Tree
from adaptcl.strategies.aggregation import Aggregation, AggregationSettings, zero_missing_units
from adaptcl.strategies.strategy import BaseStrategy, Closed, Job, Reaction
from adaptcl.training import Arrival, Pruning, Task
from adaptcl.training.divergence import first_not_finite
from adaptcl.units import Kept, State


@dataclass(frozen=True)
class SynchronousSettings(AggregationSettings):
    """How many workers a round has, and how long it waits for them."""

    participants: int = setting(
        0, "number of workers drawn at random for each round; 0 takes all", at_least=0
    )
    deadline: float = setting(
        0.0,
        "close a round after this many times the slowest update time of the last round; "
        "0 waits for all workers",
        at_least=0,
    )
    late_updates: str = setting(
        "count",
        "count an update that misses the deadline in the next round, or drop it",
        choices=("count", "drop"),
        condition=When(used=["deadline"]),
    )


@dataclass(frozen=True)
class SubModelPlan:
    """What one worker gets in one round."""

    kept: Kept
    pruning: Pruning | None = None
    growth: float = 0.0
    """The share by which the server lets the sub-model grow."""
    is_sparse: bool = True  # whether the worker trains with the group lasso, if the job has one

    @property
    def rate(self) -> float:
        """The pruned rate P that is asked for; negative where the sub-model grows."""
        # Records must not show -0.0.
        return 0.0 - self.growth if self.pruning is None else self.pruning.rate


class Synchronous(BaseStrategy):
    """A strategy with a barrier. Subclasses override the hooks and read the views below them."""

    Settings: ClassVar[type[SynchronousSettings]] = SynchronousSettings
    remembered: ClassVar[tuple[str, ...]] = (
        *BaseStrategy.remembered,
        *("round", "_asked", "_drawn", "_slowest"),
    )

    def __init__(self, job: Job, settings: SynchronousSettings) -> None:
        if settings.participants > job.workers:
            raise SettingError(
                f"participants is {settings.participants}, but there are only {job.workers} "
                "workers; 0 asks all of them."
            )
        super().__init__(job, settings)
        self.kept: list[Kept] = [job.units.everything() for _ in range(job.workers)]
        """The kept units of each worker's sub-model."""
        self.round = 0  # the round that is running, from 1 on
        self._places = settings.participants or job.workers  # how many take part in a round
        self._asked = [0.0] * job.workers  # the pruned rate that each worker's latest task asks for
        self._drawn: set[int] = set()
        """The workers asked to take part in this round, by the draw or because they joined."""
        self._first_asked: set[int] = set()
        """Those of them that got their task when the round began."""
        self._sum = Aggregation(job.units, job.state, settings)
        self._slowest = 0.0
        self._overdue = False

    # Hooks: what a subclass may decide ---------------------------------------------------------

    def plan(self, worker: int) -> SubModelPlan:
        """The sub-model of a worker's next task, and whether the worker prunes it."""
        return SubModelPlan(self.kept[worker])

    def received(self, task: Task, arrival: Arrival, rate: float) -> None:
        """Called for every update, also for a late one that is dropped, before it is merged.

        `rate` is the pruned rate that the worker carried out. It can be less than the task asked
        for, because γ_min can stop a pruning.
        """

    def next_model(self, merged: State) -> State:
        """The next global model, made from the merged updates when a round closes.

        `self.state` is still the model before: `merged[name] - self.state[name]` is how far the
        round moved a tensor.
        """
        return merged

    def learn(self, records: Sequence[WorkerRecord]) -> tuple[str, ...]:
        """Called after a round is merged; returns warnings for the user."""
        return ()

    def undone(self, worker: int, rate: float) -> None:
        """Called when a task that was to change a sub-model by `rate` will not be answered."""

    # Views: what a subclass may ask ------------------------------------------------------------

    def is_busy(self, worker: int) -> bool:
        """Whether a worker has an open task. When a round has closed, only late workers have."""
        return worker in self._tasks

    def open_rate(self, worker: int) -> float:
        """The pruned rate of a worker's open task; 0 if its sub-model keeps its size."""
        return self._asked[worker] if worker in self._tasks else 0.0

    def warn_nothing_to_cut(self) -> tuple[str, ...]:
        """In the first round, a warning if the model cannot be cut at all."""
        if self.round > 1 or self.units.count > 0:
            return ()
        return (
            "Nothing of this model can be cut, so every worker trains all of it and the slowest "
            "sets the pace; `adaptcl.describe(model, example)` says why.",
        )

    # The strategy ------------------------------------------------------------------------------

    def start(self) -> Reaction:
        return self._begin_round()

    def receive(self, arrival: Arrival) -> Reaction:
        update, worker = arrival.update, arrival.update.worker
        task = self._tasks.pop(worker)
        rate = self._asked[worker]
        if task.pruning is not None:
            rate = achieved_rate(self.units, task.kept, update.kept, rate)
        self.received(task, arrival, rate)
        # Kept also where the update is dropped: otherwise a worker that is too slow would get the
        # same task again, be late again, and never shrink.
        self.kept[worker] = update.kept
        is_late = task.round < self.round
        if is_late and self.settings.late_updates == "drop":
            return replace(self._offer(worker), dropped=True)
        if task.round == 1:
            self._first_lambdas.add(task.kept, update.lasso_lambda)
        self._sum.add(update.state, update.kept, update.samples)
        began = worker in self._first_asked and not is_late
        self._record(arrival, rate, began_with_round=began)
        return self._close() if self._overdue else self._close_if_complete()

    def expired(self) -> Reaction:
        """Close the round with those who have answered, or else with the first who does."""
        self._overdue = True
        return self._close() if self._records else Reaction()

    def lost(self, worker: int) -> Reaction:
        """Go on without a worker. Its sub-model is kept for when it comes back."""
        self._present[worker] = False
        asked = self.open_rate(worker)
        self._tasks.pop(worker, None)
        if asked != 0:
            self.undone(worker, asked)
        if self._records or self._waits() or self.finished:
            return self._close_if_complete()
        return Reaction(self._ask())

    def joined(self, worker: int) -> Reaction:
        """Let a worker take part in the running round, if there is a place for it."""
        if not self._present[worker]:
            self.returned(worker)
        self._present[worker] = True
        answered = any(record.worker == worker for record in self._records)
        return Reaction() if answered else self._offer(worker)

    @property
    def finished(self) -> bool:
        return self.round > self.job.rounds

    def model(self) -> State:
        """The global model; what no worker holds any more counts as cut."""
        counts_as_zero = self.settings.share_missing == 1
        return zero_missing_units(self.state, self.units, self.kept, counts_as_zero=counts_as_zero)

    def sub_models(self) -> Sequence[Kept]:
        return self.kept

    def snapshot(self) -> Tree:
        # Taken between two rounds, when the sum is empty.
        return {**super().snapshot(), "kept": torch.stack(self.kept)}

    def restore(self, tree: Tree) -> None:
        super().restore(tree)
        self.kept = list(tree["kept"])
        self._first_asked = {t.worker for t in self._tasks.values() if t.round == self.round}

    # Giving out tasks --------------------------------------------------------------------------

    def _begin_round(self) -> Reaction:
        self.round += 1
        self._overdue = False
        self._drawn.clear()
        if self.finished:
            return Reaction()
        tasks = self._ask()
        self._first_asked = {task.worker for task in tasks}
        limit = self.settings.deadline * self._slowest
        return Reaction(tasks, deadline=limit if limit > 0 else None)

    def _ask(self) -> tuple[Task, ...]:
        """Tasks for this round's participants, drawn from all present workers that are free."""
        free = [w for w, here in enumerate(self._present) if here and w not in self._tasks]
        drawn = draw_participants(free, self._places, self.job.seed, self.round)
        return tuple(map(self._task, drawn))

    def _offer(self, worker: int) -> Reaction:
        """A task for a free worker, if the round has a place left."""
        taken = len(self._records) + sum(t.round == self.round for t in self._tasks.values())
        if self.finished or worker in self._tasks or taken >= self._places:
            return Reaction()
        return Reaction((self._task(worker),))

    def _task(self, worker: int) -> Task:
        plan = self.plan(worker)
        if plan.rate == 0:
            self.kept[worker] = plan.kept
        # A sub-model that changes its size has changed only when the worker's update says so.
        self._asked[worker] = plan.rate
        task = Task(
            worker=worker,
            round=self.round,
            state=self._cut(plan.kept),
            kept=plan.kept,
            recipe=self.job.recipe,
            pruning=plan.pruning,
            lasso_lambda=self._first_lambdas.mean(plan.kept) if self.round > 1 else None,
            is_sparse=plan.is_sparse,
        )
        self._tasks[worker] = task
        self._drawn.add(worker)
        return task

    def _can_be_cut(self, task: Task) -> bool:
        return task.round == self.round

    # Closing a round ---------------------------------------------------------------------------

    def _waits(self) -> bool:
        """Whether a task of this round is still open."""
        return any(task.round == self.round for task in self._tasks.values())

    def _close_if_complete(self) -> Reaction:
        return Reaction() if self._waits() or not self._records else self._close()

    def _close(self) -> Reaction:
        merged = self._sum.result(self.state)
        self.state = self._checked(self.next_model(dict(merged)), like=merged)
        records = tuple(sorted(self._records, key=lambda record: record.worker))
        self._records = []
        self._slowest = max(record.update_time_s for record in records)
        pruned = any(record.pruned_rate for record in records)
        drawn = tuple(sorted(self._drawn)) if self.settings.participants else ()
        compared = [self.kept[worker] for worker in drawn] or self.kept
        expected = self._drawn | self._tasks.keys()
        if not self.settings.participants:
            expected |= {worker for worker, here in enumerate(self._present) if not here}
        similarity = mean_similarity(self.units, compared) if pruned else None
        # Here AdaptCL decides who prunes how much in the round that begins below.
        warnings = self.learn(records)
        closed = Closed(
            round=self.round,
            workers=records,
            similarity=similarity,
            missing=tuple(sorted(expected - {record.worker for record in records})),
            participants=drawn,
            warnings=warnings,
        )
        return replace(self._begin_round(), closed=closed)

    def _checked(self, model: State, like: State) -> State:
        """A subclass's model, refused if it is none; all names of a tied tensor get one value."""
        who = f"{type(self).__name__}.next_model"
        if not isinstance(model, dict) or model.keys() != like.keys():
            raise SettingError(f"{who} must return a dict with all tensors of the model by name.")
        for name, wanted in like.items():
            found = model[name]
            if (found.dtype, found.shape) != (wanted.dtype, wanted.shape):
                raise SettingError(
                    f"{who} returns {name!r} as {found.dtype} of shape {list(found.shape)}, but it "
                    f"must be {wanted.dtype} of shape {list(wanted.shape)}."
                )
        # Updates are checked on arrival, so the merged model is finite. A custom model is checked
        # here, or the next error would blame the workers.
        is_custom = type(self).next_model is not Synchronous.next_model
        numbers = {n: tensor for n, tensor in model.items() if n not in self.units.constants}
        if is_custom and (odd := first_not_finite(numbers)) is not None:
            raise SettingError(
                f"{who} returns {odd!r} with values that are not finite in round {self.round}, "
                "though all updates are finite."
            )
        # Every name has a separate tensor, as everywhere else in a state; a forecast has none.
        tied = self.units.tied
        again = {name: model[tied[name]].clone() for name in like if name in tied}
        # Workers keep the tensors that never change, so a subclass must not change them either.
        again |= {name: like[name] for name in like if name in self.units.unchanging}
        return {name: again.get(name, model[name]) for name in like}


def draw_participants(available: Sequence[int], count: int, seed: int, round_: int) -> list[int]:
    """`count` of the available workers, or all if there are no more, in their order.

    The draw depends only on the seed, the round and who is available, so a resumed run draws the
    same workers.
    """
    if count >= len(available):
        return list(available)
    randomness = generator(seed, "participants", round_)
    places = torch.randperm(len(available), generator=randomness)[:count].sort().values
    return [available[place] for place in places.tolist()]


# FedAVG ------------------------------------------------------------------------------------------


class FedAVGS(Synchronous):
    """FedAVG with sparse training: the baseline that AdaptCL is measured against."""

    summary = "whole model for everybody, sparse training; waits for the slowest"
    # Everybody holds every unit, so the rules for missing units make no difference.
    unused: ClassVar[tuple[str, ...]] = (*Synchronous.unused, "aggregation", "fading")


class FedAVG(FedAVGS):
    """FedAVG with plain training, as it was published: no group lasso."""

    summary = "whole model for everybody, plain training; waits for the slowest"
    unused: ClassVar[tuple[str, ...]] = (*FedAVGS.unused, "strength")
