"""The contract of a strategy: a small state machine that turns arriving updates into tasks.

A strategy never asks for the time, opens a socket or trains. The loop hands it one event at a
time and delivers the tasks that it returns. The strategy does not see whether the clock is virtual
or real, or whether workers are threads or hospitals. It answers each arrival separately, so a
barrier is its choice: synchronous and asynchronous methods run on the same loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from torch import Tensor

from adaptcl.records import WorkerRecord
from adaptcl.storage import Tree
from adaptcl.training import Arrival, Pruning, Recipe, Task
from adaptcl.units import Kept, State, UnitMap, retention


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
    """A strategy's answer to an event: tasks to deliver, and the round that the event closed."""

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


def worker_record(
    units: UnitMap, arrival: Arrival, pruned_rate: float, *, began_with_round: bool
) -> WorkerRecord:
    """One worker's line in the record of a round."""
    timing, update = arrival.timing, arrival.update
    cost = update.pruning_cost
    return WorkerRecord(
        worker=update.worker,
        send_s=timing.send,
        train_s=timing.train,
        receive_s=timing.receive,
        update_time_s=timing.update_time,
        retention=retention(units, update.kept),
        pruned_rate=pruned_rate,
        importance_lost=cost.importance_lost if cost else None,
        loss_jump=cost.loss_after - cost.loss_before if cost else None,
        bytes_sent=timing.bytes_sent,
        bytes_received=timing.bytes_received,
        train_loss=update.loss,
        test=update.test,
        begin_s=None if began_with_round else timing.begin,
    )


def task_to_tree(task: Task, with_state: bool) -> Tree:
    """An open task for a checkpoint, without its tensors where they can be cut again."""
    return {
        "worker": task.worker,
        "round": task.round,
        "kept": task.kept,
        "lasso": task.lasso_lambda,
        "is_sparse": task.is_sparse,
        "carries_fractions": task.carries_fractions,
        "pruning": None if task.pruning is None else dict(vars(task.pruning)),
        "state": dict(task.state) if with_state else None,
    }


def task_from_tree(tree: Tree, recipe: Recipe, cut: Callable[[Kept], Mapping[str, Tensor]]) -> Task:
    """The task as it was given out; `cut` makes the tensors that were left out."""
    state = cut(tree["kept"]) if tree["state"] is None else tree["state"]
    pruning = None if tree["pruning"] is None else Pruning(**tree["pruning"])
    return Task(
        worker=tree["worker"],
        round=tree["round"],
        state=state,
        kept=tree["kept"],
        recipe=recipe,
        pruning=pruning,
        lasso_lambda=tree["lasso"],
        is_sparse=tree["is_sparse"],
        carries_fractions=tree["carries_fractions"],
    )
