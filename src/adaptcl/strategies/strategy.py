"""What a strategy is: a small state machine that turns arrivals into tasks.

It never asks for the time, never opens a socket and never trains. An engine hands it one arrival
after the other and delivers the tasks it gives back; whether the clock is virtual or real, and
whether workers are threads or hospitals, makes no difference to it. Because each arrival is
answered on its own, a barrier is something a strategy may build, not something the loop imposes:
synchronous and asynchronous methods are the same loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
    state: State
    """The global model's first tensors."""
    workers: int
    rounds: int
    recipe: Recipe
    seed: int
    time_noise: float = 0.0
    """The relative spread of update times of equal tasks, as it is expected before any are
    measured; 0 on a clock that has none."""


@dataclass(frozen=True)
class Closed:
    """A round that is over. For asynchronous strategies: one merge for each worker."""

    round: int
    workers: tuple[WorkerRecord, ...]
    similarity: float | None = None
    missing: tuple[int, ...] = ()
    participants: tuple[int, ...] = ()
    """Who was drawn to take part, where not everybody was asked."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reaction:
    """How a strategy answers: tasks to deliver, and a round that this closed, if it did."""

    tasks: tuple[Task, ...] = ()
    closed: Closed | None = None
    deadline: float | None = None
    """Call `expired` this many seconds from now, unless another deadline replaces it."""
    dropped: bool = False
    """The update that it answers was not used, so its worker's codec has sent nothing by it."""


class Strategy(Protocol):
    """One method of collaborative learning, as the server sees it."""

    def start(self) -> Reaction:
        """The first tasks."""
        ...

    def receive(self, arrival: Arrival) -> Reaction:
        """Take one update, already checked, with the time it took."""
        ...

    def expired(self) -> Reaction:
        """The deadline asked for has passed."""
        ...

    def lost(self, worker: int) -> Reaction:
        """A worker is gone; what it was working on will not arrive."""
        ...

    def joined(self, worker: int) -> Reaction:
        """A worker has come, or come back."""
        ...

    @property
    def rounds(self) -> int:
        """How many rounds there will be; not the job's number where a method counts otherwise."""
        ...

    @property
    def finished(self) -> bool:
        """Whether all rounds are done."""
        ...

    def model(self) -> State:
        """The global model as it would be used now, in the shapes of the original model."""
        ...

    def sub_models(self) -> Sequence[Kept]:
        """The kept units of each worker's sub-model."""
        ...

    def outstanding(self) -> Sequence[Task]:
        """The tasks given out and not answered, just as they were given."""
        ...

    def snapshot(self) -> Tree:
        """All that is needed to go on from here."""
        ...

    def restore(self, tree: Tree) -> None:
        """Go on from a snapshot, in place of `start`."""
        ...


# From an arrival to the line of it in the round's record.


def worker_record(units: UnitMap, arrival: Arrival, pruned_rate: float) -> WorkerRecord:
    """What one worker did in one round."""
    timing, update = arrival.timing, arrival.update
    cut = update.cut
    return WorkerRecord(
        worker=update.worker,
        send_s=timing.send,
        train_s=timing.train,
        receive_s=timing.receive,
        update_time_s=timing.update_time,
        retention=retention(units, update.kept),
        pruned_rate=pruned_rate,
        importance_lost=cut.importance_lost if cut else None,
        loss_jump=cut.loss_after - cut.loss_before if cut else None,
        bytes_sent=timing.bytes_sent,
        bytes_received=timing.bytes_received,
    )


# Open tasks in a checkpoint: a task as a tree and back.


def task_to_tree(task: Task, with_state: bool) -> Tree:
    """A task for a checkpoint; without its tensors where they can be cut again."""
    pruning = task.pruning
    return {
        "worker": task.worker,
        "round": task.round,
        "kept": task.kept,
        "lasso_scale": task.lasso_scale,
        "lasso": task.lasso,
        "carries_fractions": task.carries_fractions,
        "pruning": None
        if pruning is None
        else {
            "rate": pruning.rate,
            "order": pruning.order,
            "importance": pruning.importance,
            "min_retention": pruning.min_retention,
            "width_multiple": pruning.width_multiple,
        },
        "state": dict(task.state) if with_state else None,
    }


def task_from_tree(tree: Tree, recipe: Recipe, cut: Callable[[Kept], Mapping[str, Tensor]]) -> Task:
    """The task as it was given; `cut` makes the tensors that were left out."""
    pruning = tree["pruning"]
    return Task(
        worker=tree["worker"],
        round=tree["round"],
        state=tree["state"] if tree["state"] is not None else cut(tree["kept"]),
        kept=tree["kept"],
        recipe=recipe,
        pruning=None if pruning is None else Pruning(**pruning),
        lasso_scale=tree["lasso_scale"],
        lasso=tree["lasso"],
        carries_fractions=tree["carries_fractions"],
    )
