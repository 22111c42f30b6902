"""Each node's time is its own, whatever the others do meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Any

import pytest

pytest.importorskip("flwr", reason="adaptcl.flower needs flwr: pip install 'adaptcl[network]'")

from flwr.app import Message, MessageType, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from adaptcl.engines.flower_grid import Moments, TimedGrid


class Slow:
    """Takes its time as Flower's HttpGrid does: a message is there when all of it is pushed, and
    whoever pulls answers waits for each that is announced until all of it has come."""

    def __init__(self, push_s: float = 0.0) -> None:
        self._push_s = push_s
        self._asked: dict[str, Message] = {}
        self.answered: dict[int, threading.Event] = {}
        """Set when all of a node's answer has come, which is announced from the beginning."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        names = []
        for message in messages:
            time.sleep(self._push_s)
            names.append(f"{len(self._asked)}")
            message.metadata.__dict__["_message_id"] = names[-1]
            self._asked[names[-1]] = message
        return names

    def pull_messages(self, names: Iterable[str]) -> Iterable[Message]:
        replies = []
        for name in names:
            asked = self._asked[name]
            assert self.answered[asked.metadata.dst_node_id].wait(60)
            replies.append(Message(RecordDict(), reply_to=asked))
        return replies


@pytest.fixture(autouse=True)
def _in_a_server_app(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower lets only a running app make messages."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def questions(*nodes: int) -> list[Message]:
    return [Message(RecordDict(), node, MessageType.TRAIN) for node in nodes]


def answering(grid: Slow, seconds: dict[int, float]) -> None:
    """Have each node answer after so many seconds from now."""
    for node, after in seconds.items():
        grid.answered[node] = threading.Event()
        timer = threading.Timer(after, grid.answered[node].set)
        timer.daemon = True
        timer.start()


def timed(grid: Any) -> tuple[TimedGrid, dict[int, Moments]]:
    moments: dict[int, Moments] = {}
    return TimedGrid(grid, moments), moments


def test_a_node_with_a_slow_link_is_slow_and_makes_no_other_seem_so() -> None:
    grid = Slow()
    own, moments = timed(grid)
    answering(grid, {11: 1.0, 12: 0.0, 13: 0.0})
    assert len(list(own.send_and_receive(questions(11, 12, 13)))) == 3
    assert moments[11].elapsed(0.0) > 0.8
    assert moments[12].elapsed(0.0) < 0.5
    assert moments[13].elapsed(0.0) < 0.5


def test_the_time_in_which_others_are_asked_is_no_nodes() -> None:
    grid = Slow(push_s=0.3)
    own, moments = timed(grid)
    answering(grid, {11: 0.0, 12: 0.0, 13: 0.0})
    own.send_and_receive(questions(11, 12, 13))
    assert all(each.elapsed(0.0) < 0.5 for each in moments.values())


def test_a_node_that_begins_before_all_is_pushed_has_worked_as_long_as_it_says_and_can_have() -> (
    None
):
    moments = Moments(began=10.0, pushed=14.0, arrived=15.0)
    assert [moments.elapsed(worked) for worked in (0.5, 3.0, 1e9)] == [1.0, 3.0, 5.0]


def test_a_round_is_over_in_time_also_while_an_answer_is_on_its_way() -> None:
    grid = Slow()
    own, moments = timed(grid)
    answering(grid, {11: 0.0, 12: 60.0})
    began = time.monotonic()
    assert len(list(own.send_and_receive(questions(11, 12), timeout=0.3))) == 1
    assert time.monotonic() - began < 5
    assert moments.keys() == {11}
    late = grid.answered[12]
    answering(grid, {11: 0.2})
    late.set()
    assert len(list(own.send_and_receive(questions(11), timeout=60))) == 1
    assert moments.keys() == {11}, "what came too late belongs to no round"


def test_what_goes_wrong_in_fetching_an_answer_is_raised_in_the_app() -> None:
    class Broken(Slow):
        def pull_messages(self, names: Iterable[str]) -> Iterable[Message]:
            raise ConnectionError("the link is gone")

    own, _ = timed(Broken())
    with pytest.raises(ConnectionError, match="the link is gone"):
        own.send_and_receive(questions(11))


def test_a_message_that_flower_does_not_take_is_not_waited_for() -> None:
    class Refusing(Slow):
        def push_messages(self, messages: Iterable[Message]) -> Iterable[Any]:
            return [None for _ in messages]

    own, _ = timed(Refusing())
    assert list(own.send_and_receive(questions(11))) == []
