"""Flower's grid as a transport: tasks travel as messages of somebody's Flower app.

A node's update time must be its own. Flower pushes all messages of a round before it looks for
answers, and fetches answers one after the other. Measured around that, each node's time would hold
the others' waits, and the node with the slowest link could look like the fastest. So here each
message goes by itself, and a thread waits for its answer. Flower's grids allow that: they make HTTP
calls with a client that they use from many threads themselves, or ask a link state that has locks.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from adaptcl.codecs.codec import Codecs
from adaptcl.engines.network.frames import from_record, printable, to_record
from adaptcl.engines.network.gate import read_answer
from adaptcl.engines.network.messages import task_frame
from adaptcl.engines.network.server.patience import Reliability
from adaptcl.engines.network.shared_units import units_to_json
from adaptcl.engines.transport import Arrived, Expired, Happening, Joined, Lost, Traffic
from adaptcl.errors import UpdateError
from adaptcl.interrupts import raise_if_interrupted
from adaptcl.storage import Tree
from adaptcl.training import Arrival, Task, Timing
from adaptcl.training.wire.encoding import encode_model
from adaptcl.training.wire.frozen import FrozenTensorHolders, LackingError
from adaptcl.units import UnitMap

UNITS = "units"
"""In the header of a task: the units of the run, because a node keeps no model between tasks."""

_POLL_S = 0.2  # between two looks for an answer; Flower's own loop looks every three seconds
_POLLS_PER_S = 50.0  # of all threads together: with many nodes, each looks less often
_TICK_S = 1.0  # how often to look for nodes that have come back


@dataclass(frozen=True)
class OpenMessage:
    """A task that was pushed to a node. Times are of the monotonic clock."""

    task: Task
    size: int  # in bytes
    began: float  # when pushing it began
    pushed: float  # when all of it was there for its node
    is_complete: bool = True  # whether it brings all that the node needs, frozen tensors too
    done: threading.Event = field(default_factory=threading.Event)
    """Nobody waits for the answer any more."""

    def elapsed(self, arrived: float, worked: float) -> float:
        """The update time of a node that says it worked so many seconds.

        The time to push a message is not its node's: of tensors that several messages share, the
        first message carries all. But a node may begin before all of it is there.
        """
        return max(arrived - self.pushed, min(worked, arrived - self.began))


@dataclass(frozen=True)
class _Outcome:
    """The answer to a message, or an error of the grid."""

    message: OpenMessage
    result: Message | Exception
    at: float


class FlowerTransport:
    """A transport between a strategy and the nodes of a Flower app."""

    def __init__(
        self, grid: Grid, workers: int, units: UnitMap, codecs: Codecs, timeout: float
    ) -> None:
        """`timeout` is how many seconds a node may take for a task."""
        self._traffic = Traffic()
        self.away: set[int] = set()
        self._grid = grid
        self._count = workers
        self._units = units
        self._shared_units = units_to_json(units)
        self._codecs = codecs
        self._timeout = timeout
        self._nodes: list[int] = []
        self._began = time.monotonic()
        self._open: dict[int, OpenMessage] = {}
        self._outcomes: SimpleQueue[_Outcome] = SimpleQueue()
        self._returning: set[int] = set()
        """Lost workers that take part again as soon as their nodes are online."""
        self._retry_at = math.inf  # when to ask everybody again if no answer is to come
        self._reliability = Reliability(workers)
        self._unsettled: dict[int, int] = {}
        """Rounds of updates that the strategy has not yet taken or dropped."""
        self._frozen_holders = FrozenTensorHolders(units)
        self._used = [0] * workers
        """The round of each worker's latest update that was used; 0 before the first."""

    @property
    def now(self) -> float:
        return time.monotonic() - self._began

    def open(self, resume: Tree | None) -> Iterator[Happening]:
        """Workers are Flower's nodes in the order of their IDs."""
        while len(nodes := sorted(self._grid.get_node_ids())) < self._count:
            raise_if_interrupted()
            time.sleep(_TICK_S)
        self._nodes = nodes[: self._count]
        self._began = time.monotonic()
        yield from ()

    def deliver(self, task: Task) -> None:
        model = encode_model(task, self._units, self._codecs.down)
        frozen = self._frozen_holders.tensors_for(task)
        frame = task_frame(task, model, self._used[task.worker], frozen)
        frame.header[UNITS] = self._shared_units
        content = frame.to_bytes()
        node = self._nodes[task.worker]
        # Flower's group is the round in its own strategies.
        message = Message(to_record(content), node, MessageType.TRAIN, group_id=str(task.round))
        began = time.monotonic()
        names = [name for name in self._grid.push_messages([message]) if name]
        is_complete = frozen is None or bool(frozen.tensors)
        pushed = OpenMessage(task, len(content), began, time.monotonic(), is_complete)
        self._open[task.worker] = pushed
        if names:
            # A daemon: a node that falls silent in the middle of its answer can hold it for hours.
            thread = threading.Thread(target=self._wait, args=(pushed, names[0]), daemon=True)
            thread.start()
        else:
            error = UpdateError("Flower did not take its message.")
            self._outcomes.put(_Outcome(pushed, error, time.monotonic()))

    def begin(self) -> None:
        """Nodes begin as soon as a message reaches them."""

    def next(self, deadline: float) -> Iterator[Happening]:
        yield from self._take_back()
        try:
            outcome = self._outcomes.get(timeout=self._until_next(deadline))
        except Empty:
            if self.now >= deadline:
                yield Expired()
        else:
            yield from self._handle(outcome)
        yield from self._give_up()

    def settle(self, worker: int, *, used: bool) -> None:
        round_ = self._unsettled.pop(worker)
        if used:
            self._used[worker] = round_

    def close_round(self) -> tuple[int, int]:
        """Workers that were left out of the round may take part in the next."""
        self._returning = set(self.away)
        return self._traffic.take_round()

    def snapshot(self) -> Tree:
        """Nothing: a Flower app does not resume."""
        return {}

    def close(self) -> None:
        for each in self._open.values():
            each.done.set()

    def _until_next(self, deadline: float) -> float:
        now = time.monotonic()
        times = [each.pushed + self._timeout for each in self._open.values()]
        times += [self._began + deadline, now + _TICK_S]
        return max(0.0, min(times) - now)

    def _wait(self, message: OpenMessage, name: str) -> None:
        """Wait for the answer to a message; runs in a thread."""
        try:
            while not message.done.is_set():
                for reply in self._grid.pull_messages([name]):
                    self._outcomes.put(_Outcome(message, reply, time.monotonic()))
                    return
                message.done.wait(max(_POLL_S, len(self._open) / _POLLS_PER_S))
        except Exception as error:  # `next` raises it where the app can see it.
            self._outcomes.put(_Outcome(message, error, time.monotonic()))

    def _handle(self, outcome: _Outcome) -> Iterator[Happening]:
        message = outcome.message
        worker = message.task.worker
        if self._open.get(worker) is not message:
            return  # given up before
        try:
            arrival = self._arrival(outcome)
        except UpdateError as error:
            self._frozen_holders.forget(worker)
            if isinstance(error, LackingError) and not message.is_complete:
                self._end_task(worker)
                self.deliver(message.task)
            else:
                yield self._lose(worker, str(error))
            return
        self._frozen_holders.answered(message.task)
        self._end_task(worker)
        self._reliability.succeeded(arrival.update)
        self._unsettled[worker] = arrival.update.round
        yield Arrived(arrival)

    def _arrival(self, outcome: _Outcome) -> Arrival:
        reply, message = outcome.result, outcome.message
        if isinstance(reply, Exception):
            raise reply
        if reply.has_error():
            raise UpdateError(printable(str(reply.error.reason)))
        content = from_record(reply.content)
        self._traffic.count_answer(len(content))
        update = read_answer(content, message.task, self._units, self._codecs)
        self._reliability.check_samples(update)
        total = message.elapsed(outcome.at, update.seconds)
        train = min(update.seconds, total)
        way = (total - train) / 2
        begin = outcome.at - self._began - total
        timing = Timing(way, train, way, message.size, len(content), begin)
        return Arrival(update, timing)

    def _give_up(self) -> Iterator[Happening]:
        """Lose workers that have taken too long for their tasks."""
        for worker, each in list(self._open.items()):
            is_current = self._open.get(worker) is each
            if is_current and time.monotonic() - each.pushed > self._timeout:
                yield self._lose(worker, "there is no answer")

    def _take_back(self) -> Iterator[Happening]:
        """Let lost workers take part again whose nodes are online."""
        if not self._open and time.monotonic() >= self._retry_at:
            self._reliability.refuse_if_all_are_excluded()
            self._retry_at = math.inf
            self._returning = set(self.away)
        if self._returning:
            online = set(self._grid.get_node_ids())
            for worker in sorted(self._returning):
                if self._nodes[worker] in online:
                    self._returning.discard(worker)
                    self.away.discard(worker)
                    yield Joined(worker)

    def _lose(self, worker: int, reason: str) -> Lost:
        self._end_task(worker)
        self._reliability.failed(worker, reason)
        self.away.add(worker)
        self._retry_at = time.monotonic() + _TICK_S
        return Lost(worker, reason)

    def _end_task(self, worker: int) -> None:
        ended = self._open.pop(worker)
        ended.done.set()
        self._traffic.count_task(ended.size)
