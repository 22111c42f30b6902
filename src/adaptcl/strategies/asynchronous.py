"""No barrier: every arrival is merged at once, and its worker goes on with the result.

Each worker runs all rounds at its own pace, so there are W·T merges. For the record, W merges
make one round. Subclasses say how an update is merged and, if they like, who has to wait.

The model has moved on while a worker trained, so most methods merge not the model it sends but
its *change*: what it sends less what it pulled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from adaptcl.records import WorkerRecord
from adaptcl.storage import Tree
from adaptcl.strategies.first_lasso import FirstLasso
from adaptcl.strategies.strategy import (
    Closed,
    Job,
    Reaction,
    task_from_tree,
    task_to_tree,
    worker_record,
)
from adaptcl.training import Arrival, Task, Update
from adaptcl.units import Kept, State
from adaptcl.units.unit_map import is_counter, is_variance


@dataclass(frozen=True)
class AsynchronousSettings:
    """Settings of every strategy without a barrier: none are common to all."""


class Asynchronous(ABC):
    """A strategy without a barrier, in which every worker trains the whole model."""

    Settings: ClassVar[type] = AsynchronousSettings
    unused: ClassVar[tuple[str, ...]] = ("beta",)

    def __init__(self, job: Job, settings: AsynchronousSettings) -> None:
        self.job = job
        self.state: State = job.state
        self.merges = 0
        self.done = [0] * job.workers
        """Rounds each worker has finished."""
        self._present = [True] * job.workers
        self._tasks: dict[int, Task] = {}
        self._pulled = [0] * job.workers
        """The number of merges there had been when each worker got its task."""
        self._records: list[WorkerRecord] = []
        self._lasso = FirstLasso()

    # What a subclass decides -------------------------------------------------------------------

    @abstractmethod
    def merge(self, update: Update, task: Task, staleness: int) -> None:
        """Take an update into the model; `staleness` counts the merges since it was pulled.

        It must set `self.state` to new tensors: open tasks share the old ones.
        """

    def may_go(self, worker: int) -> bool:
        """Whether a worker that is idle gets its next task now."""
        return True

    # The strategy ------------------------------------------------------------------------------

    def start(self) -> Reaction:
        """A task for everybody."""
        return Reaction(self._release())

    def receive(self, arrival: Arrival) -> Reaction:
        """Merge one update and let whoever may go on."""
        update = arrival.update
        task = self._tasks.pop(update.worker)
        if self._pulled[update.worker] == 0:
            self._lasso.note(task.kept, update.lasso)
        before = self.state
        self.merge(update, task, self.merges - self._pulled[update.worker])
        if constants := self.job.units.constants:
            self.state = {**self.state, **{name: before[name] for name in constants}}
        self.merges += 1
        self.done[update.worker] += 1
        self._records.append(worker_record(self.job.units, arrival, 0.0))
        return Reaction(self._release(), self._close_if_complete())

    def expired(self) -> Reaction:
        """No deadline is ever asked for."""
        return Reaction()

    def lost(self, worker: int) -> Reaction:
        """Go on without a worker, and wait for it no longer."""
        self._present[worker] = False
        self._tasks.pop(worker, None)
        return Reaction(self._release(), self._close_if_complete())

    def joined(self, worker: int) -> Reaction:
        """Let a worker go on where it was."""
        self._present[worker] = True
        return Reaction(self._release())

    @property
    def rounds(self) -> int:
        """How many rounds there will be."""
        return self.job.rounds

    @property
    def finished(self) -> bool:
        """Whether every worker that is here has run all rounds.

        While nobody is here and nobody has run them, there is somebody to wait for.
        """
        complete = [done >= self.job.rounds for done in self.done]
        here = zip(complete, self._present, strict=True)
        return any(complete) and all(all_done for all_done, present in here if present)

    def model(self) -> State:
        """The global model."""
        return self.state

    def sub_models(self) -> Sequence[Kept]:
        """Everybody has the whole model."""
        return [self.job.units.everything()] * self.job.workers

    def outstanding(self) -> Sequence[Task]:
        """The tasks given out and not answered."""
        return list(self._tasks.values())

    def snapshot(self) -> Tree:
        """All that is needed to go on; every open task with the model it was given.

        Asked when a round has just closed, so no merge waits to be put on record.
        """
        return {
            "state": self.state,
            "merges": self.merges,
            "done": list(self.done),
            "present": list(self._present),
            "pulled": list(self._pulled),
            "first_lasso": self._lasso.snapshot(),
            "tasks": [task_to_tree(t, with_state=True) for t in self._tasks.values()],
        }

    def restore(self, tree: Tree) -> None:
        """Go on from a snapshot."""
        self.state = tree["state"]
        self.merges = tree["merges"]
        self.done = list(tree["done"])
        self._present = list(tree["present"])
        self._pulled = list(tree["pulled"])
        self._lasso.restore(tree["first_lasso"])
        for each in tree["tasks"]:
            task = task_from_tree(each, self.job.recipe, lambda _: self.state)
            self._tasks[task.worker] = task

    def _release(self) -> tuple[Task, ...]:
        return tuple(
            self._task(worker)
            for worker in range(self.job.workers)
            if self._present[worker]
            and worker not in self._tasks
            and self.done[worker] < self.job.rounds
            and self.may_go(worker)
        )

    def _task(self, worker: int) -> Task:
        whole = self.job.units.everything()
        task = Task(
            worker=worker,
            round=self.done[worker] + 1,
            state=self.state,
            kept=whole,
            recipe=self.job.recipe,
            lasso=self._lasso.mean(whole) if self.merges else None,
        )
        self._tasks[worker] = task
        self._pulled[worker] = self.merges
        return task

    def _close_if_complete(self) -> Closed | None:
        if not self._records or not (len(self._records) >= self.job.workers or self.finished):
            return None
        records, self._records = tuple(self._records), []
        return Closed(round=-(-self.merges // self.job.workers), workers=records)


def is_statistic(name: str) -> bool:
    """Whether a tensor is a running statistic of a norm layer: measured, not trained."""
    return is_variance(name) or name.rpartition(".")[2] == "running_mean"


def whole_numbers(name: str, state: State, sent: State) -> Tensor:
    """What becomes of a tensor of whole numbers: counts take the largest value, and nothing else
    that is no float changes in training."""
    return torch.maximum(state[name], sent[name]) if is_counter(name) else state[name]


def add_change(state: State, sent: State, pulled: Mapping[str, Tensor], weight: float) -> State:
    """A model moved by `weight` times a worker's change, `sent` less `pulled`, as new tensors.

    Running variances need a floor: several workers that pulled the same variance may each report
    that it fell, and the sum of their changes can be more than there was. The floor is `weight`
    times what the worker sent. Where everybody pulled the same model it never binds, because the
    sum is then an average with that very product among its terms.
    """
    return {name: _moved(name, state, sent, pulled, weight) for name in state}


def _moved(
    name: str, state: State, sent: State, pulled: Mapping[str, Tensor], weight: float
) -> Tensor:
    if not state[name].is_floating_point():
        return whole_numbers(name, state, sent)
    moved = torch.add(state[name], sent[name] - pulled[name], alpha=weight)
    if is_variance(name):
        moved = torch.maximum(moved, min(weight, 1.0) * sent[name])
    return moved
