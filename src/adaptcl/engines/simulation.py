"""The simulation: all workers in one process, on one virtual clock.

Real training runs in threads while the virtual clock decides the order of events. How long things
take is in `environment.py`, and which update comes next in `thread_executor.py`. For each worker
the simulation keeps only what the worker has to remember, nothing as large as a model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch

from adaptcl.codecs.codec import Codec, Codecs, Memory
from adaptcl.engines.environment import Environment
from adaptcl.engines.thread_executor import ExpectedUpdate, ThreadExecutor, Trained
from adaptcl.engines.transport import Arrived, Expired, Happening, Joined, Lost, Transport
from adaptcl.errors import AdaptCLError, CodecError
from adaptcl.quantities import duration
from adaptcl.storage import Tree
from adaptcl.training import Arrival, Task, Timing, Update
from adaptcl.training.divergence import refuse_diverged
from adaptcl.training.wire import (
    FrozenTensorHolders,
    decode_update,
    encode_model,
    encode_update,
    encoded_size,
    frozen_size,
    sent_task,
)
from adaptcl.training.worker import Worker, WorkerMemory
from adaptcl.units import Kept, UnitMap


@dataclass(frozen=True)
class TaskOutcome:
    """The result of a task, as the server receives it."""

    update: Update
    payload_bytes: int
    memory: WorkerMemory


class LocalWorkers:
    """Workers that train in this process and get and send everything through codecs."""

    def __init__(self, workers: Sequence[Worker], units: UnitMap, codecs: Codecs) -> None:
        self.units = units
        self.codecs = codecs
        self._workers = workers

    def task_bytes(self, task: Task) -> int:
        """Bytes that go down to the worker, beside those of frozen tensors."""
        size = encoded_size(task, task.kept, self.units, self.codecs.down)
        return encode_model(task, self.units, self.codecs.down).nbytes if size is None else size

    def update_bytes(self, task: Task, kept: Kept) -> int | None:
        """Bytes of an answer with these kept units, if they are known beforehand."""
        return encoded_size(task, kept, self.units, self.codecs.up)

    def train(self, task: Task, memory: WorkerMemory) -> TaskOutcome:
        """Train as a task says; called from several threads at once."""
        units, codecs = self.units, self.codecs
        sent = sent_task(task, units, codecs.down)
        said = encoded_size(task, task.kept, units, codecs.down)
        _refuse_other_size(codecs.down, "this model", said, sent.size)
        update, memory = self._workers[task.worker].carry_out(sent.read, memory)
        refuse_diverged(update, units)
        payload, codec_memory = encode_update(update, sent.read, units, codecs.up, memory.codec)
        size = payload.nbytes
        if task.pruning is None:
            _refuse_other_size(codecs.up, "this update", self.update_bytes(task, task.kept), size)
        received = decode_update(payload, update, sent, units, codecs.up)
        return TaskOutcome(received, size, WorkerMemory(memory.lasso_lambda, codec_memory))


def _refuse_other_size(codec: Codec, what: str, expected: int | None, size: int) -> None:
    if expected not in (None, size):
        kind = type(codec)
        raise CodecError(
            f"The codec {kind.__module__}:{kind.__qualname__} has said that {what} takes "
            f"{expected:,} bytes, but it takes {size:,}; its `size` must be exact, or give None "
            "where that depends on the values."
        )


@dataclass(frozen=True)
class _OpenTask:
    """A task under way."""

    task: Task
    start: float
    size: int


class SimulatedTransport(Transport):
    """A transport between a strategy and simulated workers."""

    remembered: ClassVar[tuple[str, ...]] = ("_now", "_presence_seen", "away", "_frozen_holders")

    def __init__(
        self, workers: LocalWorkers, environment: Environment, count: int, threads: int
    ) -> None:
        super().__init__()
        self.away: set[int] = set()
        self._workers = workers
        self._environment = environment
        self._cores = torch.get_num_threads()
        # Sums come out differently with another number of cores inside one training, so it does not
        # depend on how many trainings run side by side.
        self._trainings = ThreadExecutor(threads, cores_for_each=max(1, self._cores // count))
        self._now = 0.0
        self._open: dict[int, _OpenTask] = {}
        self._memories = [WorkerMemory()] * count
        self._frozen_holders = FrozenTensorHolders(workers.units)
        self._answered: dict[int, WorkerMemory] = {}
        """What a worker remembers once its update is acknowledged."""
        self._resumed_starts: dict[int, float] = {}
        """When tasks that are sent again after a resume were first sent."""
        self._presence = environment.conditions.changes_of_presence()
        self._presence_seen = 0

    @property
    def now(self) -> float:
        return self._now

    def open(self, resume: Tree | None) -> Iterator[Happening]:
        if resume is not None:
            self.restore(resume)
        # Workers hold all cores. An operation that the server splits among them waits for its turn
        # on each, which takes a hundred times as long as the operation.
        torch.set_num_threads(1)
        yield from ()

    def close(self) -> None:
        # Nobody waits for a training whose update is not wanted any more: not who presses Ctrl-C,
        # and not a run that ends while a lost worker still computes.
        self._trainings.close()
        torch.set_num_threads(self._cores)

    def send(self, task: Task) -> Timing:
        if task.worker in self._open:
            self._trainings.drop(task.worker)  # the last test takes the place of any task
        start = self._resumed_starts.pop(task.worker, self._now)
        sent = self._workers.task_bytes(task)
        if self._frozen_holders.lacks(task):
            sent += frozen_size(task, self._workers.units)
        self._open[task.worker] = _OpenTask(task, start, sent)
        known = None
        if task.pruning is None:
            received = self._workers.update_bytes(task, task.kept)
            if received is not None:
                known = self._environment.timing(task, task.kept, start, sent, received)
        shortest = known or self._environment.shortest(task, start, sent)
        self._trainings.add(
            task.worker,
            start,
            partial(self._train, task, start, self._memories[task.worker], sent, known),
            earliest=start + shortest.update_time,
            is_known=known is not None,
        )
        return known or replace(shortest, train=math.inf)

    def begin(self) -> None:
        self._trainings.begin()

    def next(self, deadline: float) -> Iterator[Happening]:
        """Of several things at the same moment, presence changes first and deadlines pass last."""
        change = None
        if self._presence_seen < len(self._presence):
            change = self._presence[self._presence_seen]
        changes_at = change[0] if change is not None else math.inf
        first = self._trainings.first(min(changes_at, deadline))
        if change is not None and changes_at <= min(deadline, first.time if first else math.inf):
            self._now = changes_at
            yield self._change_presence(change[1], change[2])
        elif first is not None:
            self._now = first.time
            yield self._receive(first)
        elif deadline < math.inf:
            self._now = deadline
            yield Expired()
        else:
            raise AdaptCLError(
                f"At {duration(self._now)} no worker is left and none will come back; "
                "the run cannot go on."
            )

    def acknowledge(self, worker: int, *, used: bool) -> None:
        memory = self._answered.pop(worker)
        if not used:  # then the codec has sent nothing
            memory = replace(memory, codec=self._memories[worker].codec)
        self._memories[worker] = memory

    def snapshot(self) -> Tree:
        return {
            **super().snapshot(),
            # A training under way is done again. Until its update arrives, a worker's memory is the
            # one it began the task with.
            "lasso_lambdas": [memory.lasso_lambda for memory in self._memories],
            "codecs": [
                [worker, dict(memory.codec.tensors)]
                for worker, memory in enumerate(self._memories)
                if memory.codec.tensors
            ],
            "open": [[worker, each.start] for worker, each in self._open.items()],
        }

    def restore(self, tree: Tree) -> None:
        super().restore(tree)
        self._memories = [WorkerMemory(lasso) for lasso in tree["lasso_lambdas"]]
        for worker, tensors in tree["codecs"]:
            self._memories[worker] = replace(self._memories[worker], codec=Memory(tensors))
        self._resumed_starts = dict(tree["open"])

    def _receive(self, expected: ExpectedUpdate) -> Happening:
        worker = expected.worker
        trained = self._trainings.take(expected)
        self._frozen_holders.answered(self._open[worker].task)
        self._end_task(worker)
        self.count_answer(trained.arrival.timing.bytes_received)
        self._answered[worker] = trained.memory
        return Arrived(trained.arrival)

    def _change_presence(self, worker: int, present: bool) -> Happening:
        self._presence_seen += 1
        if present:
            self.away.discard(worker)
            return Joined(worker)
        self.away.add(worker)
        self._end_task(worker)
        self._trainings.drop(worker)
        return Lost(worker, "it is away, says the trace")

    def _end_task(self, worker: int) -> None:
        ended = self._open.pop(worker, None)
        if ended is not None:
            self.count_task(ended.size)

    def _train(
        self, task: Task, start: float, memory: WorkerMemory, sent: int, known: Timing | None
    ) -> Trained:
        """Everything between sending a task and its update's arrival; runs in a thread.

        `known` is how long it takes, where that was known before it was trained.
        """
        answer = self._workers.train(task, memory)
        timing = known or self._environment.timing(
            task, answer.update.kept, start, sent, answer.payload_bytes
        )
        return Trained(Arrival(answer.update, timing), answer.memory)
