"""The simulation engine: all workers in one process, on one virtual clock.

The loop is the whole of it: deliver tasks, wait for the next thing to happen, hand it to the
strategy. Real training runs in threads while the virtual clock decides the order of events, and
the order never depends on which thread was faster: an event is only taken when no training still
under way could come before it.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import torch

from adaptcl.codecs.codec import Codec, Memory
from adaptcl.engines.environment import Environment
from adaptcl.engines.heterogeneity import heterogeneity
from adaptcl.errors import AdaptCLError
from adaptcl.events import (
    Listener,
    RoundFinished,
    UpdateArrived,
    Warned,
    WorkerJoined,
    WorkerLost,
)
from adaptcl.records import RoundRecord
from adaptcl.snapshot import Tree
from adaptcl.strategies.strategy import Closed, Reaction, Strategy
from adaptcl.training import Arrival, Task
from adaptcl.training.wire import pack, unpack
from adaptcl.training.worker import Worker, WorkerMemory
from adaptcl.units import State, UnitMap, size_bytes

_PRESENCE, _ARRIVAL, _DEADLINE = range(3)
"""What comes first of several things at the same moment."""


@dataclass(frozen=True)
class Trained:
    """What comes out of a worker's thread."""

    arrival: Arrival
    memory: WorkerMemory


@dataclass(frozen=True)
class _Open:
    """A task under way: when it was sent, what the worker knew then, and the running training."""

    task: Task
    start: float
    memory: WorkerMemory
    earliest: float
    future: Future[Trained]


@dataclass(order=True, frozen=True)
class _Event:
    time: float
    kind: int
    worker: int
    present: bool = field(default=False, compare=False)


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
        judge: Callable[[State, int], float | None],
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
        self._memories = [WorkerMemory() for _ in workers]
        self._deadline: float | None = None
        self._update_times = [0.0] * len(workers)
        self._rounds_closed = 0
        self._presence = environment.trace.changes_of_presence()
        self._presence_seen = 0

    def run(self, checkpoint: Callable[[Tree], None], resume: Tree | None = None) -> None:
        """Run to the end; `checkpoint` gets all that is needed to go on after every round."""
        cores = torch.get_num_threads()
        pool = ThreadPoolExecutor(
            self._threads,
            "worker",
            initializer=torch.set_num_threads,
            initargs=(self._cores_for_each(cores),),
        )
        try:
            self._pool = pool
            if resume is None:
                self._act(self._strategy.start(), checkpoint)
            else:
                self._restore(resume)
            while not self._strategy.finished:
                self._act(self._next(), checkpoint)
        finally:
            # Nobody waits for a training whose update is not wanted any more: not who presses
            # Ctrl-C, and not a run that ends while a lost worker still computes.
            pool.shutdown(wait=False, cancel_futures=True)
            torch.set_num_threads(cores)

    def _cores_for_each(self, cores: int) -> int:
        """Cores inside one training. Sums come out differently with another number of them, so it
        does not depend on how many trainings run side by side."""
        if self._environment.measured:
            return cores
        return max(1, cores // len(self._workers))

    # One turn of the loop ----------------------------------------------------------------------

    def _next(self) -> Reaction:
        """Take the next thing that happens and hand it to the strategy."""
        event = self._soonest()
        self.now = event.time
        if event.kind == _DEADLINE:
            self._deadline = None
            return self._strategy.expired()
        if event.kind == _PRESENCE:
            return self._change_presence(event)
        open_task = self._open.pop(event.worker)
        trained = open_task.future.result()
        self._memories[event.worker] = trained.memory
        self._update_times[event.worker] = trained.arrival.timing.update_time
        self._tell(UpdateArrived(event.worker, open_task.task.round, self.now))
        return self._strategy.receive(trained.arrival)

    def _soonest(self) -> _Event:
        """The next event in virtual time, waiting only for trainings that could be it."""
        candidates = self._other_events()
        unknown: list[tuple[float, int]] = []
        for worker, each in self._open.items():
            if each.future.done():
                candidates.append(self._arrival(worker, each))
            else:
                heapq.heappush(unknown, (each.earliest, worker))
        while unknown and (not candidates or unknown[0][0] <= min(candidates).time):
            worker = heapq.heappop(unknown)[1]
            candidates.append(self._arrival(worker, self._open[worker]))
        if not candidates:
            raise AdaptCLError(
                f"At {self.now:.0f} s no worker is left and none will come back; "
                "the run cannot go on."
            )
        return min(candidates)

    def _arrival(self, worker: int, each: _Open) -> _Event:
        timing = each.future.result().arrival.timing
        return _Event(each.start + timing.update_time, _ARRIVAL, worker)

    def _other_events(self) -> list[_Event]:
        events = [
            _Event(when, _PRESENCE, worker, present)
            for when, worker, present in self._presence[self._presence_seen :][:1]
        ]
        if self._deadline is not None:
            events.append(_Event(self._deadline, _DEADLINE, -1))
        return events

    def _change_presence(self, event: _Event) -> Reaction:
        self._presence_seen += 1
        round_ = self._rounds_closed + 1
        if event.present:
            self._tell(WorkerJoined(event.worker, round_))
            return self._strategy.joined(event.worker)
        self._tell(WorkerLost(event.worker, round_, "it is away, says the trace"))
        self._update_times[event.worker] = 0.0  # who is away has no part in the heterogeneity
        left = self._open.pop(event.worker, None)
        if left is not None:
            left.future.cancel()
        return self._strategy.lost(event.worker)

    # Carrying out what the strategy wants ------------------------------------------------------

    def _act(self, reaction: Reaction, checkpoint: Callable[[Tree], None]) -> None:
        for task in reaction.tasks:
            self._deliver(task, self.now, self._memories[task.worker])
        if reaction.deadline is not None:
            self._deadline = self.now + reaction.deadline
        elif reaction.closed is not None:
            self._deadline = None
        if reaction.closed is not None:
            self._finish_round(reaction.closed)
            checkpoint(self._snapshot())

    def _deliver(self, task: Task, start: float, memory: WorkerMemory) -> None:
        sent = size_bytes(self._units, task.kept)
        self._open[task.worker] = _Open(
            task,
            start,
            memory,
            self._environment.earliest(task, start, sent),
            self._pool.submit(self._train, task, start, memory, sent),
        )

    def _train(self, task: Task, start: float, memory: WorkerMemory, sent: int) -> Trained:
        """Everything between sending a task and its update's arrival; runs in a thread."""
        began = time.perf_counter()
        update, memory = self._workers[task.worker].carry_out(task, memory)
        seconds = time.perf_counter() - began
        payload, codec_memory = pack(update, task, self._units, self._codec, memory.codec)
        received = unpack(payload, update, task, self._units, self._codec)
        timing = self._environment.timing(task, update.kept, start, sent, payload.nbytes, seconds)
        return Trained(Arrival(received, timing), WorkerMemory(memory.lasso, codec_memory))

    def _finish_round(self, closed: Closed) -> None:
        self._rounds_closed = closed.round
        for warning in closed.warnings:
            self._tell(Warned(warning))
        record = RoundRecord(
            round=closed.round,
            virtual_time_s=self.now,
            accuracy=self._judge(self._strategy.model(), closed.round),
            heterogeneity=heterogeneity(self._update_times),
            workers=closed.workers,
            similarity=closed.similarity,
            missing=closed.missing,
        )
        self._tell(RoundFinished(record))

    # Checkpoints -------------------------------------------------------------------------------

    def _snapshot(self) -> Tree:
        return {
            "now": self.now,
            "deadline": self._deadline,
            "presence_seen": self._presence_seen,
            "update_times": list(self._update_times),
            "rounds_closed": self._rounds_closed,
            "strategy": self._strategy.snapshot(),
            # A training under way is done again from what its worker knew when it began.
            "memories": [
                _memory_to_tree(self._open[w].memory if w in self._open else memory)
                for w, memory in enumerate(self._memories)
            ],
            "open": [[worker, each.start] for worker, each in self._open.items()],
        }

    def _restore(self, tree: Tree) -> None:
        self.now = tree["now"]
        self._deadline = tree["deadline"]
        self._presence_seen = tree["presence_seen"]
        self._update_times = tree["update_times"]
        self._rounds_closed = tree["rounds_closed"]
        self._strategy.restore(tree["strategy"])
        self._memories = [_memory_from_tree(each) for each in tree["memories"]]
        starts = dict(tree["open"])
        for task in self._strategy.outstanding():
            self._deliver(task, starts[task.worker], self._memories[task.worker])


def _memory_to_tree(memory: WorkerMemory) -> Tree:
    return {"lasso": memory.lasso, "codec": dict(memory.codec.tensors)}


def _memory_from_tree(tree: Tree) -> WorkerMemory:
    return WorkerMemory(tree["lasso"], Memory(tree["codec"]))
