"""Flower's grid with an eye on the clock: when each node was asked, and when its answer was there.

Flower pushes all messages of a round before it looks for answers, and fetches those it finds one
after the other, each until its node has sent all of it. With times taken around that, each node's
would have the others' waits in it, and the one with the slowest link could pass for the fastest.
So here each message goes by itself, and has a thread that waits for its answer. Flower's grids
bear that: they make HTTP calls with a client that they use from many threads themselves, or ask a
link state that has locks.
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
"""Between two looks for an answer; Flower's own loop looks every three seconds."""
_LOOKS_PER_S = 50.0
"""Of all threads together; where there are many nodes, each is looked for less often."""


@dataclass(frozen=True)
class Moments:
    """When things happened to one message, by the monotonic clock."""

    began: float
    """When it began to be pushed."""
    pushed: float
    """When all of it was there for its node."""
    arrived: float
    """When all of the answer was here."""

    def elapsed(self, worked: float) -> float:
        """How long it took a node that says to have worked so many seconds.

        What it takes to push a message is not its node's time: of tensors that several messages
        share, the first of them carries all. But a node may begin before it is all there.
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
    """What has become of a message: its answer, or an error of the grid."""

    question: _Question
    result: Message | Exception
    at: float


@dataclass(frozen=True)
class _Round:
    """What the threads of one round share. A thread that is left behind, because its answer came
    too late, has nothing in common with those of the next."""

    pause: float
    outcomes: SimpleQueue[_Outcome] = field(default_factory=SimpleQueue)
    over: threading.Event = field(default_factory=threading.Event)


class TimedGrid:
    """A grid that notes the moments of each node's message in a dictionary."""

    def __init__(self, grid: Grid, moments: dict[int, Moments]) -> None:
        self._grid = grid
        self._moments = moments

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """What Flower's grids do, but the timeout holds also while an answer is on its way."""
        all_messages = list(messages)
        this = _Round(max(_LOOK_S, len(all_messages) / _LOOKS_PER_S))
        try:
            waiting = sum(self._ask(message, this) for message in all_messages)
            until = None if timeout is None else time.monotonic() + timeout
            return self._collect(waiting, this, until)
        finally:
            this.over.set()

    def _ask(self, message: Message, this: _Round) -> int:
        """Push a message and have its answer waited for; gives how many answers there will be,
        which is none if Flower does not take the message."""
        node = message.metadata.dst_node_id
        began = time.monotonic()
        names = [name for name in self._grid.push_messages([message]) if name]
        pushed = time.monotonic()
        for name in names:
            question = _Question(name, node, began, pushed)
            # A daemon, because it may wait for hours on a node that has gone silent in the middle
            # of its answer, and the round and the app may be over before.
            threading.Thread(target=self._wait, args=(question, this), daemon=True).start()
        return len(names)

    def _wait(self, question: _Question, this: _Round) -> None:
        try:
            while not this.over.is_set():
                for reply in self._grid.pull_messages([question.name]):
                    this.outcomes.put(_Outcome(question, reply, time.monotonic()))
                    return
                this.over.wait(this.pause)
        except Exception as error:  # It is raised where the app can see it.
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
