"""The contract of a strategy: a small state machine that turns arriving updates into tasks.

A strategy never asks for the time, opens a socket or trains. The loop hands it one event at a
time and sends the tasks that it returns. The strategy does not see whether the clock is virtual
or real, or whether workers are threads or hospitals. It answers each arrival separately, so a
barrier is its choice: synchronous and asynchronous methods run on the same loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

from torch import Tensor

from adaptcl.records import WorkerRecord
from adaptcl.storage import Remembered, Tree
from adaptcl.training import Arrival, Pruning, Recipe, Task
from adaptcl.training.lasso_lambda import FirstLambdas
from adaptcl.units import Kept, State, UnitMap, retention
from adaptcl.units.cut import CutOnDemand


@dataclass(frozen=True)
class Job:
    """What every strategy starts from."""

    units: UnitMap
    state: State  # the tensors of the first global model
    workers: int
    rounds: int
    recipe: Recipe
    seed: int
    time_noise: float = 0.0
    """Expected relative spread of the update times of equal tasks; 0 on an exact clock."""
    is_steady: bool = False
    """Whether no worker can become faster or slower, as in a simulation where nothing changes."""

    def without_lasso(self) -> Job:
        """The same job with plain training, for methods that were published so."""
        return replace(self, recipe=replace(self.recipe, strength=0.0))


@dataclass(frozen=True)
class Closed:
    """A finished round. For asynchronous strategies: as many merges as there are workers."""

    round: int
    workers: tuple[WorkerRecord, ...]
    similarity: float | None = None
    missing: tuple[int, ...] = ()
    participants: tuple[int, ...] = ()  # the workers drawn to take part; empty where all were asked
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reaction:
    """A strategy's answer to an event: tasks to send, and the round that the event closed."""

    tasks: tuple[Task, ...] = ()
    closed: Closed | None = None
    deadline: float | None = None
    """Call `expired` this many seconds from now, unless another deadline replaces it."""
    dropped: bool = False  # the update was not used, so the codec must treat it as never sent


class Strategy(Protocol):
    """One method of collaborative learning, as the server sees it."""

    def start(self) -> Reaction:
        """The first tasks."""
        ...

    def receive(self, arrival: Arrival) -> Reaction:
        """Take one update, already checked, with the time it took."""
        ...

    def expired(self) -> Reaction:
        """The requested deadline has passed."""
        ...

    def lost(self, worker: int) -> Reaction:
        """A worker has gone; its open task will not be answered."""
        ...

    def joined(self, worker: int) -> Reaction:
        """A worker has come, or come back."""
        ...

    @property
    def rounds(self) -> int:
        """How many rounds there will be; a method may count differently from the job."""
        ...

    @property
    def finished(self) -> bool: ...

    def model(self) -> State:
        """The global model as it would be used now, in the shapes of the original model."""
        ...

    def sub_models(self) -> Sequence[Kept]:
        """The kept units of each worker's sub-model."""
        ...

    def outstanding(self) -> Sequence[Task]:
        """The open tasks, exactly as they were given out."""
        ...

    def snapshot(self) -> Tree:
        """Everything needed to go on from here; `state` holds the global model."""
        ...

    def restore(self, tree: Tree) -> None:
        """Go on from a snapshot, in place of `start`."""
        ...


class BaseStrategy(Remembered):
    """What methods with and without a barrier have in common: open tasks, records, checkpoints."""

    summary: ClassVar[str]
    unused: ClassVar[tuple[str, ...]] = ("beta",)  # shared settings that have no effect on it
    remembered: ClassVar[tuple[str, ...]] = ("state", "_present", "_first_lambdas")

    def __init__(self, job: Job, settings: Any) -> None:
        # Some methods were published with plain training.
        self.job = job.without_lasso() if "strength" in self.unused else job
        self.units = job.units
        self.settings = settings
        self.state: State = job.state
        """The global model. Open tasks share its tensors, so nobody may write into them."""
        self._present = [True] * job.workers
        self._tasks: dict[int, Task] = {}
        self._records: list[WorkerRecord] = []
        """Of the updates since the last round closed."""
        self._first_lambdas = FirstLambdas()

    def returned(self, worker: int) -> None:
        """Called when a worker that was away joins again, before it gets a task."""

    def is_present(self, worker: int) -> bool:
        return self._present[worker]

    @property
    def rounds(self) -> int:
        return self.job.rounds

    def outstanding(self) -> Sequence[Task]:
        return list(self._tasks.values())

    def snapshot(self) -> Tree:
        tasks = [_task_to_tree(task, self._can_be_cut(task)) for task in self._tasks.values()]
        return {**super().snapshot(), "tasks": tasks}

    def restore(self, tree: Tree) -> None:
        super().restore(tree)
        for each in tree["tasks"]:
            state = self._cut(each["kept"]) if each["state"] is None else each["state"]
            task = _task_from_tree(each, self.job.recipe, state)
            self._tasks[task.worker] = task

    def _record(self, arrival: Arrival, pruned_rate: float, *, began_with_round: bool) -> None:
        """Note one worker's line in the record of a round."""
        timing, update = arrival.timing, arrival.update
        cost = update.pruning_cost
        record = WorkerRecord(
            worker=update.worker,
            send_s=timing.send,
            train_s=timing.train,
            receive_s=timing.receive,
            update_time_s=timing.update_time,
            retention=retention(self.units, update.kept),
            pruned_rate=pruned_rate,
            importance_lost=cost.importance_lost if cost else None,
            loss_jump=cost.loss_after - cost.loss_before if cost else None,
            bytes_sent=timing.bytes_sent,
            bytes_received=timing.bytes_received,
            train_loss=update.loss,
            test=update.test,
            begin_s=None if began_with_round else timing.begin,
        )
        self._records.append(record)

    def _can_be_cut(self, task: Task) -> bool:
        """Whether the tensors of an open task can be cut from the global model again."""
        return False

    def _cut(self, kept: Kept) -> Mapping[str, Tensor]:
        """The tensors of a sub-model."""
        # Nobody writes into a task's tensors, so the whole model need not be copied.
        return self.state if bool(kept.all()) else CutOnDemand(self.state, self.units, kept)


def _task_to_tree(task: Task, without_state: bool) -> Tree:
    """An open task for a checkpoint; the recipe is the job's."""
    state = None if without_state else dict(task.state)
    pruning = None if task.pruning is None else dict(vars(task.pruning))
    tree = {**vars(task), "state": state, "pruning": pruning}
    del tree["recipe"]
    return tree


def _task_from_tree(tree: Tree, recipe: Recipe, state: Mapping[str, Tensor]) -> Task:
    pruning = None if tree["pruning"] is None else Pruning(**tree["pruning"])
    return Task(**{**tree, "recipe": recipe, "state": state, "pruning": pruning})
