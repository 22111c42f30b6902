"""A Flower grid that measures when each node is asked and when its answer arrives.

Flower pushes all messages of a round before it looks for answers, and then fetches the answers one
after the other. Times taken around that would include the waits for other nodes, and the node with
the slowest link could look like the fastest. So here each message is pushed on its own and has a
thread that waits for its answer. Flower's grids allow that: they call HTTP with a client that
Flower itself uses from many threads, or ask a link state that has locks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

_LOOK_S = 0.2
"""Seconds between two looks for an answer; Flower's loop looks every three seconds."""
_LOOKS_PER_S = 50.0
"""Looks of all threads together. With many nodes, each thread looks less often."""


@dataclass(frozen=True)
class Moments:
    """The times of one message, on the monotonic clock."""

    began: float
    """When the push began."""
    pushed: float
    """When the push was complete."""
    arrived: float
    """When the whole answer had arrived."""

    def elapsed(self, worked: float) -> float:
        """The update time of a node that reports `worked` seconds of work.

        The push does not count: of tensors that several messages share, the first message carries
        all. But a node may begin before the push is complete.
        """
        return max(self.arrived - self.pushed, min(worked, self.arrived - self.began))


@dataclass(frozen=True)
class _Question:
    """A message that has been pushed."""

    name: str
    node: int
    began: float
    pushed: float


@dataclass(frozen=True)
class _Outcome:
    """The answer to a message, or an error of the grid."""

    question: _Question
    result: Message | Exception
    at: float


@dataclass(frozen=True)
class _Round:
    """What the threads of one round share. A thread whose answer comes too late stays behind with
    its round and does not disturb the next one."""

    pause: float
    outcomes: SimpleQueue[_Outcome] = field(default_factory=SimpleQueue)
    over: threading.Event = field(default_factory=threading.Event)


class TimedGrid:
    """A grid that records the moments of each node's message in a dictionary."""

    def __init__(self, grid: Grid, moments: dict[int, Moments]) -> None:
        self._grid = grid
        self._moments = moments

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """As Flower's grids do, but the timeout also ends an answer that is on its way."""
        all_messages = list(messages)
        this = _Round(max(_LOOK_S, len(all_messages) / _LOOKS_PER_S))
        try:
            waiting = sum(self._ask(message, this) for message in all_messages)
            until = None if timeout is None else time.monotonic() + timeout
            return self._collect(waiting, this, until)
        finally:
            this.over.set()

    def _ask(self, message: Message, this: _Round) -> int:
        """Push a message and start to wait for its answer. Returns the number of answers to expect,
        0 if Flower refuses the message."""
        node = message.metadata.dst_node_id
        began = time.monotonic()
        names = [name for name in self._grid.push_messages([message]) if name]
        pushed = time.monotonic()
        for name in names:
            question = _Question(name, node, began, pushed)
            # A daemon, because it may wait for hours on a node that fell silent in the middle of
            # its answer, and the app may end before that.
            threading.Thread(target=self._wait, args=(question, this), daemon=True).start()
        return len(names)

    def _wait(self, question: _Question, this: _Round) -> None:
        try:
            while not this.over.is_set():
                for reply in self._grid.pull_messages([question.name]):
                    this.outcomes.put(_Outcome(question, reply, time.monotonic()))
                    return
                this.over.wait(this.pause)
        except Exception as error:  # raised again where the app can see it
            this.outcomes.put(_Outcome(question, error, time.monotonic()))

    def _collect(self, waiting: int, this: _Round, until: float | None) -> list[Message]:
        replies: list[Message] = []
        while len(replies) < waiting:
            left = None if until is None else max(0.0, until - time.monotonic())
            try:
                outcome = this.outcomes.get(timeout=left)
            except Empty:
                break
            if isinstance(outcome.result, Exception):
                raise outcome.result
            asked = outcome.question
            self._moments[asked.node] = Moments(asked.began, asked.pushed, outcome.at)
            replies.append(outcome.result)
        return replies
