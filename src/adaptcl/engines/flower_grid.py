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
from adaptcl.engines.network.server.remote_transport import OpenTask, RemoteTransport
from adaptcl.engines.transport import Arrived, Expired, Happening, Joined, Lost
from adaptcl.errors import UpdateError
from adaptcl.interrupts import raise_if_interrupted
from adaptcl.storage import Tree
from adaptcl.training import Arrival, Task, Timing
from adaptcl.units import UnitMap
from adaptcl.units.as_json import units_to_json

UNITS = "units"
"""In the header of a task: the units of the run, because a node keeps no model between tasks."""

_POLL_S = 0.2  # between two looks for an answer; Flower's own loop looks every three seconds
_POLLS_PER_S = 50.0  # of all threads together: with many nodes, each looks less often
_TICK_S = 1.0  # how often to look for nodes that have come back


@dataclass(frozen=True)
class OpenMessage(OpenTask):
    """A task that was pushed to a node. Times are of the monotonic clock."""

    began: float  # when pushing it began; it was `sent` when all of it was there for its node
    done: threading.Event = field(default_factory=threading.Event)
    """Nobody waits for the answer any more."""

    def elapsed(self, arrived: float, worked: float) -> float:
        """The update time of a node that says it worked so many seconds.

        The time to push a message is not its node's: of tensors that several messages share, the
        first message carries all. But a node may begin before all of it is there.
        """
        return max(arrived - self.sent, min(worked, arrived - self.began))


@dataclass(frozen=True)
class _Outcome:
    """The answer to a message, or an error of the grid."""

    message: OpenMessage
    result: Message | Exception
    at: float


class FlowerTransport(RemoteTransport[OpenMessage]):
    """A transport between a strategy and the nodes of a Flower app."""

    def __init__(
        self, grid: Grid, workers: int, units: UnitMap, codecs: Codecs, timeout: float
    ) -> None:
        super().__init__(workers, units, codecs, time.monotonic, timeout)
        self._grid = grid
        self._count = workers
        self._shared_units = units_to_json(units)
        self._nodes: list[int] = []
        self._outcomes: SimpleQueue[_Outcome] = SimpleQueue()
        self._returning: set[int] = set()
        """Lost workers that take part again as soon as their nodes are online."""
        self._retry_at = math.inf  # when to ask everybody again if no answer is to come

    def open(self, resume: Tree | None) -> Iterator[Happening]:
        """Workers are Flower's nodes in the order of their IDs."""
        while len(nodes := sorted(self._grid.get_node_ids())) < self._count:
            raise_if_interrupted()
            time.sleep(_TICK_S)
        self._nodes = nodes[: self._count]
        self._began = time.monotonic()
        yield from ()

    def send(self, task: Task) -> None:
        self._end_task(task.worker)
        frame, is_complete = self._framed(task)
        frame.header[UNITS] = self._shared_units
        content = frame.to_bytes()
        node = self._nodes[task.worker]
        # Flower's group is the round in its own strategies.
        message = Message(to_record(content), node, MessageType.TRAIN, group_id=str(task.round))
        began = time.monotonic()
        names = [name for name in self._grid.push_messages([message]) if name]
        pushed = OpenMessage(task, len(content), is_complete, time.monotonic(), began)
        self._open[task.worker] = pushed
        if names:
            # A daemon: a node that falls silent in the middle of its answer can hold it for hours.
            thread = threading.Thread(target=self._wait, args=(pushed, names[0]), daemon=True)
            thread.start()
        else:
            error = UpdateError("Flower did not take its message.")
            self._outcomes.put(_Outcome(pushed, error, time.monotonic()))

    def next(self, deadline: float) -> Iterator[Happening]:
        yield from self._take_back()
        due = min(self._began + deadline, time.monotonic() + _TICK_S)
        try:
            outcome = self._outcomes.get(timeout=self._until_next(due))
        except Empty:
            if self.now >= deadline:
                yield Expired()
        else:
            yield from self._handle(outcome)
        yield from self._give_up()

    def close_round(self) -> tuple[int, int]:
        """Workers that were left out of the round may take part in the next."""
        self._returning = set(self.away)
        return super().close_round()

    def close(self) -> None:
        for each in self._open.values():
            each.done.set()

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
            content = _content(outcome.result)
            update = self._accept(content, message)
        except UpdateError as error:
            yield self._give_up_on(worker, str(error))
            return
        if update is not None:
            total = message.elapsed(outcome.at, update.seconds)
            train = min(update.seconds, total)
            way = (total - train) / 2
            begin = outcome.at - self._began - total
            timing = Timing(way, train, way, message.size, len(content), begin)
            yield Arrived(Arrival(update, timing))

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

    def _give_up_on(self, worker: int, reason: str) -> Lost:
        self._reliability.failed(worker, reason)
        self._retry_at = time.monotonic() + _TICK_S
        return self._lose(worker, reason)

    def _withdraw(self, ended: OpenMessage) -> None:
        ended.done.set()


def _content(reply: Message | Exception) -> bytes:
    """What a node has answered, or the error that came in its place."""
    if isinstance(reply, Exception):
        raise reply
    if reply.has_error():
        raise UpdateError(printable(str(reply.error.reason)))
    return from_record(reply.content)
