"""The simulation engine: all workers in one process, on one virtual clock.

The loop is the whole of it: deliver tasks, wait for the next thing to happen, hand it to the
strategy. Real training runs in threads (`trainings.py`) while the virtual clock decides the order
of events. What is held for each worker is what it has to remember, and nothing of a model's size.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from adaptcl.codecs.codec import Codec, Memory
from adaptcl.engines.environment import Environment
from adaptcl.engines.loop import Deadline, Traffic, tell_round
from adaptcl.engines.thread_executor import Expected, Trainings
from adaptcl.errors import AdaptCLError, CodecError
from adaptcl.events import Listener, UpdateArrived, WorkerJoined, WorkerLost
from adaptcl.storage import Tree
from adaptcl.strategies.strategy import Closed, Reaction, Strategy
from adaptcl.training import Arrival, Task, Timing
from adaptcl.training.wire import pack, payload_bytes, unpack
from adaptcl.training.worker import Worker, WorkerMemory
from adaptcl.units import State, UnitMap, size_bytes


@dataclass(frozen=True)
class Trained:
    """What comes out of a worker's thread."""

    arrival: Arrival
    memory: WorkerMemory

    @property
    def update_time(self) -> float:
        """Virtual seconds from the task's sending to the update's arrival."""
        return self.arrival.timing.update_time


@dataclass(frozen=True)
class _Open:
    """A task under way, when it was sent and how many bytes it has."""

    task: Task
    start: float
    size: int


class Simulation:
    """Runs a strategy against simulated workers until it is finished."""

    def __init__(
        self,
        strategy: Strategy,
        workers: Sequence[Worker],
        units: UnitMap,
        codec: Codec,
        environment: Environment,
        *,
        judge: Callable[[State, Closed], float | None],
        listener: Listener,
        threads: int,
    ) -> None:
        self._strategy = strategy
        self._workers = workers
        self._units = units
        self._codec = codec
        self._environment = environment
        self._judge = judge
        self._tell = listener
        self._threads = threads
        self.now = 0.0
        self._open: dict[int, _Open] = {}
        self._memories = [WorkerMemory()] * len(workers)
        self._deadline = Deadline()
        self._update_times = [0.0] * len(workers)
        self._traffic = Traffic()
        self._rounds_closed = 0
        self._presence = environment.trace.changes_of_presence()
        self._presence_seen = 0

    def run(self, checkpoint: Callable[[Tree], None], resume: Tree | None = None) -> None:
        """Run to the end; `checkpoint` gets all that is needed to go on after every round."""
        cores = torch.get_num_threads()
        self._trainings = Trainings[Trained](self._threads, self._cores_for_each(cores))
        # Workers hold all cores. An operation that the server splits among them waits for its turn
        # on each, which takes a hundred times as long as the operation.
        torch.set_num_threads(1)
        try:
            if resume is None:
                self._act(self._strategy.start(), checkpoint)
            else:
                self._restore(resume)
            while not self._strategy.finished:
                self._act(self._next(), checkpoint)
        finally:
            # Nobody waits for a training whose update is not wanted any more: not who presses
            # Ctrl-C, and not a run that ends while a lost worker still computes.
            self._trainings.close()
            torch.set_num_threads(cores)

    def _cores_for_each(self, cores: int) -> int:
        """Cores inside one training. Sums come out differently with another number of them, so it
        does not depend on how many trainings run side by side."""
        if self._environment.measured:
            return cores
        return max(1, cores // len(self._workers))

    # One turn of the loop ----------------------------------------------------------------------

    def _next(self) -> Reaction:
        """Take the next thing that happens and hand it to the strategy.

        Of several at the same moment, presence changes first and deadlines pass last.
        """
        change = self._presence[self._presence_seen] if self._more_presence else None
        changes_at = change[0] if change is not None else math.inf
        expires_at = self._deadline.at
        first = self._trainings.first(min(changes_at, expires_at))
        if change is not None and changes_at <= min(expires_at, first.time if first else math.inf):
            self.now = changes_at
            return self._change_presence(change[1], change[2])
        if first is not None:
            self.now = first.time
            return self._receive(first)
        if expires_at == math.inf:
            raise AdaptCLError(
                f"At {self.now:.0f} s no worker is left and none will come back; "
                "the run cannot go on."
            )
        self.now = expires_at
        self._deadline.clear()
        return self._strategy.expired()

    @property
    def _more_presence(self) -> bool:
        return self._presence_seen < len(self._presence)

    def _receive(self, expected: Expected) -> Reaction:
        worker = expected.worker
        trained = self._trainings.take(expected)
        task = self._open[worker].task
        self._end_task(worker)
        self._traffic.answered(trained.arrival.timing.bytes_received)
        self._update_times[worker] = trained.update_time
        self._tell(UpdateArrived(worker, task.round, self.now))
        reaction = self._strategy.receive(trained.arrival)
        memory = trained.memory
        if reaction.dropped:
            memory = replace(memory, codec=self._memories[worker].codec)
        self._memories[worker] = memory
        return reaction

    def _change_presence(self, worker: int, present: bool) -> Reaction:
        self._presence_seen += 1
        round_ = self._rounds_closed + 1
        if present:
            self._tell(WorkerJoined(worker, round_))
            return self._strategy.joined(worker)
        self._tell(WorkerLost(worker, round_, "it is away, says the trace"))
        self._update_times[worker] = 0.0  # it may come back quite another
        self._end_task(worker)
        self._trainings.drop(worker)
        return self._strategy.lost(worker)

    @property
    def _away(self) -> set[int]:
        latest = {worker: here for _, worker, here in self._presence[: self._presence_seen]}
        return {worker for worker, here in latest.items() if not here}

    def _end_task(self, worker: int) -> None:
        """Close a worker's task, answered or not, if it has one."""
        ended = self._open.pop(worker, None)
        if ended is not None:
            self._traffic.task_ended(ended.size)

    # Carrying out what the strategy wants ------------------------------------------------------

    def _act(self, reaction: Reaction, checkpoint: Callable[[Tree], None]) -> None:
        for task in reaction.tasks:
            self._deliver(task, self.now)
        # The next round is trained while the last one is judged and written down.
        self._trainings.begin()
        self._deadline.follow(reaction, self.now)
        if reaction.closed is not None:
            self._finish_round(reaction.closed)
            checkpoint(self._snapshot())

    def _deliver(self, task: Task, start: float) -> None:
        sent = size_bytes(self._units, task.kept)
        self._open[task.worker] = _Open(task, start, sent)
        known = None
        if task.pruning is None and not self._environment.measured:
            received = payload_bytes(task, self._units, self._codec)
            if received is not None:
                known = self._environment.timing(task, task.kept, start, sent, received, 0.0)
        if known is not None:
            earliest = start + known.update_time
        else:
            earliest = self._environment.earliest(task, start, sent)
        self._trainings.add(
            task.worker,
            start,
            partial(self._train, task, start, self._memories[task.worker], sent, known),
            earliest=earliest,
            is_known=known is not None,
        )

    def _train(
        self, task: Task, start: float, memory: WorkerMemory, sent: int, known: Timing | None
    ) -> Trained:
        """Everything between sending a task and its update's arrival; runs in a thread.

        `known` is how long it takes, where that was known before it was trained.
        """
        task = replace(task, state=dict(task.state))
        began = time.perf_counter()
        update, memory = self._workers[task.worker].carry_out(task, memory)
        seconds = time.perf_counter() - began
        payload, codec_memory = pack(update, task, self._units, self._codec, memory.codec)
        received = unpack(payload, update, task, self._units, self._codec)
        timing, size = known, payload.nbytes
        if timing is None:
            timing = self._environment.timing(task, update.kept, start, sent, size, seconds)
        elif timing.bytes_received != size:
            raise CodecError(
                f"The codec {_name(type(self._codec))} has said that this update takes "
                f"{timing.bytes_received:,} bytes, but it takes {size:,}; its `size` must be "
                "exact, or give None where that depends on the values."
            )
        return Trained(Arrival(received, timing), WorkerMemory(memory.lasso, codec_memory))

    def _finish_round(self, closed: Closed) -> None:
        self._rounds_closed = closed.round
        accuracy = self._judge(self._strategy.model(), closed)
        times, away = self._update_times, self._away
        tell_round(self._tell, closed, self.now, accuracy, times, away, self._traffic)

    # Checkpoints -------------------------------------------------------------------------------

    def _snapshot(self) -> Tree:
        return {
            "now": self.now,
            "deadline": None if self._deadline.at == math.inf else self._deadline.at,
            "presence_seen": self._presence_seen,
            "update_times": list(self._update_times),
            "rounds_closed": self._rounds_closed,
            "strategy": self._strategy.snapshot(),
            # A training under way is done again. What its worker knew when it began is what it is
            # remembered to know until the update is there.
            "lassos": [memory.lasso for memory in self._memories],
            "codecs": [
                [worker, dict(memory.codec.tensors)]
                for worker, memory in enumerate(self._memories)
                if memory.codec.tensors
            ],
            "open": [[worker, each.start] for worker, each in self._open.items()],
        }

    def _restore(self, tree: Tree) -> None:
        self.now = tree["now"]
        if tree["deadline"] is not None:
            self._deadline.at = tree["deadline"]
        self._presence_seen = tree["presence_seen"]
        self._update_times = tree["update_times"]
        self._rounds_closed = tree["rounds_closed"]
        self._strategy.restore(tree["strategy"])
        self._memories = [WorkerMemory(lasso) for lasso in tree["lassos"]]
        for worker, tensors in tree["codecs"]:
            self._memories[worker] = replace(self._memories[worker], codec=Memory(tensors))
        starts = dict(tree["open"])
        for task in self._strategy.outstanding():
            self._deliver(task, starts[task.worker])


def _name(own: type) -> str:
    return f"{own.__module__}:{own.__qualname__}"
