"""Who takes part in a round: some of the workers, drawn anew each time (McMahan et al., 2017).

With thousands of workers a server asks only some of them in each round. The draw depends on the
seed, the round and who could be asked, and on nothing else, so a run that was interrupted draws
as it would have done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from adaptcl.errors import SettingError
from adaptcl.pruning.similarity import mean_similarity
from adaptcl.records import WorkerRecord
from adaptcl.seeds import generator
from adaptcl.settings import Beside, setting
from adaptcl.storage import Tree
from adaptcl.strategies.aggregation import Aggregation, AggregationSettings, unheld_zeroed
from adaptcl.strategies.first_lasso import FirstLasso
from adaptcl.strategies.strategy import (
    Closed,
    Job,
    Reaction,
    task_from_tree,
    task_to_tree,
    worker_record,
)
from adaptcl.training import Arrival, Pruning, Task
from adaptcl.units import CutOnDemand, Kept, State
from adaptcl.units.finite import first_not_finite


def draw(available: Sequence[int], count: int, seed: int, round_: int) -> list[int]:
    """`count` of the available workers, or all if there are no more, in their order."""
    if count >= len(available):
        return list(available)
    dice = generator(seed, "participants", round_)
    places = torch.randperm(len(available), generator=dice)[:count].sort().values
    return [available[place] for place in places.tolist()]


def refuse_too_many(participants: int, workers: int) -> None:
    """An error if more workers were to be asked than there are."""
    if participants > workers:
        raise SettingError(
            f"participants is {participants}, but there are only {workers} workers; "
            "0 asks all of them."
        )


# The barrier: tasks for everybody, wait for all (or for a deadline), merge, next round.
#
# FedAVG is this and nothing more; AdaptCL, HeteroFL and FedRolex only decide what each worker's
# sub-model is, and methods that make something else of what is merged, such as server momentum,
# only that. A round normally closes with the last answer. With a deadline it closes with whoever
# has answered; what arrives late is dropped or counted in the next round, by a setting. Of an
# update that is dropped the tensors go; the sub-model that it was pruned or grown to stays. Or a
# worker that is too slow would be told the same again, be late again, and never become as small
# as it has to be.
#
# "Everybody" may be a few workers drawn for each round. Who is lost leaves a place, which the
# next worker to come takes; only if all of them are lost, others are drawn for the same round.


@dataclass(frozen=True)
class SynchronousSettings(AggregationSettings):
    """Settings of every strategy with a barrier."""

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
        condition=Beside("deadline"),
    )


@dataclass(frozen=True)
class SubModelPlan:
    """What one worker gets in one round."""

    kept: Kept
    pruning: Pruning | None = None
    rate: float = 0.0
    """The pruned rate to put on record; negative where the sub-model has grown."""


class Synchronous:
    """A strategy with a barrier. Subclasses say which sub-model each worker gets."""

    Settings: ClassVar[type[SynchronousSettings]] = SynchronousSettings
    unused: ClassVar[tuple[str, ...]] = ("beta",)

    def __init__(self, job: Job, settings: SynchronousSettings) -> None:
        refuse_too_many(settings.participants, job.workers)
        self.job = job
        self.units = job.units
        self.settings = settings
        self.state: State = job.state
        self.kept: list[Kept] = [job.units.everything() for _ in range(job.workers)]
        self.round = 0
        self._present = [True] * job.workers
        self._tasks: dict[int, Task] = {}
        self._rates = [0.0] * job.workers
        self._records: list[WorkerRecord] = []
        self._drawn: set[int] = set()
        """Who was asked to take part in this round, by the draw or by coming later."""
        self._sum = Aggregation(job.units, job.state, settings)
        self._lasso = FirstLasso()
        self._slowest = 0.0
        self._overdue = False

    # What a subclass may decide ---------------------------------------------------------------

    def plan(self, worker: int) -> SubModelPlan:
        """The sub-model a worker gets, and whether it prunes it; asked as each round begins."""
        return SubModelPlan(self.kept[worker])

    def lasso_scale(self) -> float:
        """What the group lasso's λ is multiplied by this round."""
        return 1.0

    def next_model(self, merged: State) -> State:
        """The next global model, of what a round's updates are merged to.

        `self.state` is still the one before, only to be read: `merged[name] - self.state[name]` is
        how far a round has moved a tensor. Asked once for every round that closes.
        """
        return merged

    def learn(self, records: Sequence[WorkerRecord]) -> tuple[str, ...]:
        """Called when a round's models are merged; gives warnings for the user, if any."""
        return ()

    def undone(self, worker: int, rate: float) -> None:
        """Called when a task that was to change a sub-model by this rate comes to nothing."""

    def nothing_to_cut(self) -> tuple[str, ...]:
        """In the first round, the warning of a strategy that cuts a model that cannot be cut."""
        if self.round > 1 or self.units.count > 0:
            return ()
        return (
            "Nothing of this model can be cut, so every worker trains all of it and the slowest "
            "sets the pace; `adaptcl.describe(model, example)` says why.",
        )

    # The strategy ------------------------------------------------------------------------------

    def start(self) -> Reaction:
        """The first round's tasks."""
        return self._begin_round()

    def receive(self, arrival: Arrival) -> Reaction:
        """Add one update to the sum; close the round if it was the last."""
        update = arrival.update
        task = self._tasks[update.worker]
        is_late = task.round < self.round
        del self._tasks[update.worker]
        self.kept[update.worker] = update.kept
        if is_late and self.settings.late_updates == "drop":
            return replace(self._offer(update.worker), dropped=True)
        if task.round == 1:
            self._lasso.note(task.kept, update.lasso)
        self._sum.add(update.state, update.kept, update.samples)
        self._records.append(worker_record(self.units, arrival, self._rates[update.worker]))
        return self._close() if self._overdue else self._close_if_complete()

    def expired(self) -> Reaction:
        """Close the round with who has answered; where nobody has, with the first who does."""
        self._overdue = True
        return self._close() if self._records else Reaction()

    def lost(self, worker: int) -> Reaction:
        """Go on without a worker. Its sub-model stays known, for when it comes back."""
        self._present[worker] = False
        self._abandon(worker)
        if self._records or self._waits() or self.finished:
            return self._close_if_complete()
        return Reaction(self._ask())

    def joined(self, worker: int) -> Reaction:
        """Give a newcomer its part in the round that is running, if there is a place for it."""
        self._present[worker] = True
        answered = any(record.worker == worker for record in self._records)
        return Reaction() if answered else self._offer(worker)

    @property
    def rounds(self) -> int:
        """How many rounds there will be."""
        return self.job.rounds

    @property
    def finished(self) -> bool:
        """Whether all rounds are done."""
        return self.round > self.job.rounds

    def model(self) -> State:
        """The global model; what no worker holds any more counts as cut."""
        by_worker = self.settings.counts_as_zero
        return unheld_zeroed(self.state, self.units, self.kept, by_worker=by_worker)

    def sub_models(self) -> Sequence[Kept]:
        """The kept units of each worker's sub-model."""
        return self.kept

    def outstanding(self) -> Sequence[Task]:
        """The tasks given out and not answered, late ones included."""
        return list(self._tasks.values())

    def snapshot(self) -> Tree:
        """All that is needed to go on. Asked between two rounds, when the sum is empty."""
        return {
            "round": self.round,
            "state": self.state,
            "kept": torch.stack(self.kept),
            "present": list(self._present),
            "drawn": sorted(self._drawn),
            "rates": list(self._rates),
            "slowest": self._slowest,
            "first_lasso": self._lasso.snapshot(),
            # A task of this round is cut from the global model, which is here already.
            "tasks": [task_to_tree(t, t.round < self.round) for t in self._tasks.values()],
        }

    def restore(self, tree: Tree) -> None:
        """Go on from a snapshot."""
        self.round = tree["round"]
        self.state = tree["state"]
        self.kept = list(tree["kept"])
        self._drawn = set(tree["drawn"])
        self._present = tree["present"]
        self._rates = tree["rates"]
        self._slowest = tree["slowest"]
        self._lasso.restore(tree["first_lasso"])
        for each in tree["tasks"]:
            task = task_from_tree(each, self.job.recipe, self._cut)
            self._tasks[task.worker] = task

    # The barrier -------------------------------------------------------------------------------

    def _begin_round(self) -> Reaction:
        self.round += 1
        self._overdue = False
        self._drawn.clear()
        if self.finished:
            return Reaction()
        limit = self.settings.deadline * self._slowest
        return Reaction(self._ask(), deadline=limit if limit > 0 else None)

    def _ask(self) -> tuple[Task, ...]:
        """Tasks for those who are to take part, among all who are here and not busy."""
        free = [w for w, here in enumerate(self._present) if here and w not in self._tasks]
        return tuple(map(self._task, draw(free, self._places, self.job.seed, self.round)))

    @property
    def _places(self) -> int:
        """How many workers take part in a round."""
        return self.settings.participants or self.job.workers

    def _offer(self, worker: int) -> Reaction:
        """A task for a worker that is free, if the round has a place left."""
        taken = len(self._records) + sum(t.round == self.round for t in self._tasks.values())
        if self.finished or worker in self._tasks or taken >= self._places:
            return Reaction()
        return Reaction((self._task(worker),))

    def _task(self, worker: int) -> Task:
        plan = self.plan(worker)
        if plan.rate == 0:
            self.kept[worker] = plan.kept
        # A sub-model that changes its size has changed only when the worker's update says so.
        self._rates[worker] = plan.rate
        task = Task(
            worker=worker,
            round=self.round,
            state=self._cut(plan.kept),
            kept=plan.kept,
            recipe=self.job.recipe,
            pruning=plan.pruning,
            lasso_scale=self.lasso_scale(),
            lasso=self._lasso.mean(plan.kept) if self.round > 1 else None,
        )
        self._tasks[worker] = task
        self._drawn.add(worker)
        return task

    def _abandon(self, worker: int) -> None:
        """Do without the answer to a worker's task, if it has one."""
        if self._tasks.pop(worker, None) is not None and self._rates[worker] != 0:
            self.undone(worker, self._rates[worker])

    def _cut(self, kept: Kept) -> Mapping[str, Tensor]:
        # Nobody writes into a task's tensors, so the whole model need not be copied.
        return self.state if bool(kept.all()) else CutOnDemand(self.state, self.units, kept)

    def _waits(self) -> bool:
        """Whether an answer to a task of this round is still to come."""
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
        closed = Closed(
            round=self.round,
            workers=records,
            similarity=mean_similarity(self.units, self._sub_models_of(drawn)) if pruned else None,
            missing=self._missing(records),
            participants=drawn,
            warnings=self.learn(records),
        )
        return replace(self._begin_round(), closed=closed)

    def _checked(self, model: State, like: State) -> State:
        """The model that a subclass has made; all names of a tied tensor with the same values."""
        who = f"{type(self).__name__}.next_model"
        if not isinstance(model, dict) or model.keys() != like.keys():
            raise SettingError(f"{who} must give a dict with all tensors of the model by name.")
        for name, wanted in like.items():
            found = model[name]
            if (found.dtype, found.shape) != (wanted.dtype, wanted.shape):
                raise SettingError(
                    f"{who} gives {name!r} as {found.dtype} of shape {list(found.shape)}, but it "
                    f"must be {wanted.dtype} of shape {list(wanted.shape)}."
                )
        # Updates were looked at as they came, so merged they are finite: who makes another model of
        # them is looked at too, or the workers would be blamed for it.
        own = type(self).next_model is not Synchronous.next_model
        numbers = {n: tensor for n, tensor in model.items() if n not in self.units.constants}
        if own and (odd := first_not_finite(numbers)) is not None:
            raise SettingError(
                f"{who} gives {odd!r} with values that are not finite, in round {self.round}, of "
                "updates that are."
            )
        # Each name with a tensor of its own, as a state has them everywhere else.
        again = {name: model[first].clone() for name, first in self.units.tied.items()}
        return {name: again.get(name, model[name]) for name in like}

    def _missing(self, records: Sequence[WorkerRecord]) -> tuple[int, ...]:
        """Those given this round's task or still at an earlier one whom it closes without."""
        expected = self._drawn | self._tasks.keys()
        return tuple(sorted(expected - {record.worker for record in records}))

    def _sub_models_of(self, drawn: Sequence[int]) -> Sequence[Kept]:
        """The sub-models of those who were drawn; all there are where nobody was."""
        return [self.kept[worker] for worker in drawn] or self.kept
