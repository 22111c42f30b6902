"""Messages between the server and its workers, whatever happens at the same moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

pytest.importorskip("flwr", reason="the network engine needs flwr: pip install 'adaptcl[network]'")

from flwr.proto.fleet_pb2 import DeactivateNodeRequest, PushMessagesRequest
from flwr.proto.message_pb2 import PullObjectRequest, PushObjectRequest, PushObjectResponse
from flwr.supercore.constant import HEAD_BODY_DIVIDER, HEAD_VALUE_DIVIDER
from flwr.supercore.inflatable.inflatable_object import get_object_id
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore

from adaptcl.engines.network.frames import Frame
from adaptcl.engines.network.invitation import Reply
from adaptcl.engines.network.keys import server_keys, worker_keys
from adaptcl.engines.network.messages import INVITE, TASK
from adaptcl.engines.network.server.fleet import (
    Came,
    Fleet,
    FleetEvent,
    Left,
    Progressed,
    Replied,
    Silent,
)
from adaptcl.engines.network.worker.node import DisconnectedError, Incoming, Node

if TYPE_CHECKING:
    from tests.engines.network.conftest import Site

Kind = TypeVar("Kind", bound=Node)

QUESTION = Frame({"question": 1}, {}).to_bytes()
_BODY = b"\xff" * 40
NO_MESSAGE = (
    f"Message{HEAD_VALUE_DIVIDER}{HEAD_VALUE_DIVIDER}{len(_BODY)}".encode()
    + HEAD_BODY_DIVIDER
    + _BODY
)


@pytest.fixture
def fleet(site: Site) -> Iterator[Fleet]:
    with Fleet(server_keys(site.keys, 3), "127.0.0.1", 0) as opened:
        site.address = f"localhost:{opened.address[1]}"
        yield opened


def node(site: Site, number: int) -> Node:
    return special(site, number, Node)


def special(site: Site, number: int, kind: type[Kind]) -> Kind:
    return kind(site.address, worker_keys(site.keys / f"worker-{number}"), 3600.0)


def stored(fleet: Fleet) -> int:
    store = fleet._state.object_store
    assert isinstance(store, InMemoryObjectStore)
    return len(store)


def received(each: Node) -> Incoming:
    until = time.monotonic() + 300
    while True:
        incoming = each.receive()
        if incoming is not None:
            return incoming
        assert time.monotonic() < until


def replies(fleet: Fleet, count: int) -> list[Replied]:
    found: list[Replied] = []
    until = time.monotonic() + 300
    while len(found) < count:
        assert time.monotonic() < until
        found += [each for each in fleet.wait(1) if isinstance(each, Replied)]
    return found


class Mute(Node):
    """One that sends no heartbeats, as if its machine had failed."""

    def _beat(self, stop: threading.Event) -> None:
        stop.wait()


@pytest.mark.usefixtures("short_silence")
def test_a_worker_that_falls_silent_is_named_once_before_it_is_gone(
    fleet: Fleet, site: Site
) -> None:
    keys = worker_keys(site.keys / "worker-1")
    happened: list[FleetEvent] = []
    with Mute(site.address, keys, 4.0).connected(), node(site, 0).connected():
        while Left(1) not in happened:
            happened += fleet.wait(300)
    (silent,) = [each for each in happened if isinstance(each, Silent)]
    assert (silent.worker, silent.limit) == (1, 4.0)
    assert 4 / 3 < silent.seconds < 4


class Halting(Node):
    """A worker that announces an answer and sends its parts when it is told to."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._parts: list[PushObjectRequest] = []

    def _call(self, call: Any, request: Any) -> Any:
        if isinstance(request, PushObjectRequest):
            self._parts.append(request)
            return PushObjectResponse(stored=True)
        return super()._call(call, request)

    def send(self, *, whole: bool) -> list[bool]:
        """Send the part that is the message itself, or else all others; gives what was taken."""
        chosen = [p for p in self._parts if p.object_content.startswith(b"Message ") == whole]
        assert chosen
        return [super(Halting, self)._call(self._messages.PushObject, p).stored for p in chosen]


def test_equal_answers_of_two_workers_do_not_get_in_each_others_way(
    site: Site, fleet: Fleet
) -> None:
    """Equal parts are stored once, so that an answer can be whole, and be read and deleted, while
    its worker still sends parts that had come from another worker already."""
    answer = Reply(error="that of everybody").frame().to_bytes()
    workers = [special(site, number, Halting) for number in range(2)]
    with workers[0].connected(), workers[1].connected():
        fleet.wait(60)
        for number, worker in enumerate(workers):
            fleet.send(number, INVITE, QUESTION)
            worker.answer(received(worker), answer)
        assert workers[0].send(whole=False) == [True] * 4
        assert workers[0].send(whole=True) == [True]
        assert workers[1].send(whole=True) == [True]
        assert sorted((each.worker, each.content) for each in replies(fleet, 2)) == [
            (0, answer),
            (1, answer),
        ]
        assert workers[1].send(whole=False) == [True] * 4
    assert stored(fleet) == 0


def test_a_task_is_seen_to_be_received_and_its_answer_to_come(site: Site, fleet: Fleet) -> None:
    worker = special(site, 0, Halting)
    with worker.connected():
        fleet.wait(60)
        name = fleet.send(0, TASK, QUESTION)
        incoming = received(worker)
        assert fleet.wait(60) == [Progressed(0, name, "training")]
        worker.answer(incoming, QUESTION)
        assert fleet.wait(60) == [Progressed(0, name, "receiving")]
        worker.send(whole=False)
        worker.send(whole=True)
        assert [each.message for each in replies(fleet, 1)] == [name]


def test_a_question_of_a_connection_that_is_gone_takes_no_message(site: Site, fleet: Fleet) -> None:
    """The server does not see that a connection has broken while it holds a question for work."""
    broken, again = node(site, 0), node(site, 0)
    errors: list[str] = []

    def ask() -> None:
        with pytest.raises(DisconnectedError) as caught:
            received(broken)
        errors.append(str(caught.value))

    with broken.connected():
        fleet.wait(60)
        asking = threading.Thread(target=ask)
        asking.start()
        site.wait_for(lambda: fleet._calls._has_work)
        broken._presence.DeactivateNode(DeactivateNodeRequest(node_id=fleet._nodes[0]))
        with again.connected():
            site.wait_for(lambda: Came(0) in fleet.wait(1))
            fleet.send(0, TASK, QUESTION)
            assert received(again).content == QUESTION
            asking.join()
    assert errors == ["The worker has connected again."]


def test_a_message_withdrawn_while_a_worker_fetches_it_does_not_trouble_the_worker(
    site: Site, fleet: Fleet
) -> None:
    sent: list[str] = []

    class Overtaken(Node):
        def _call(self, call: Any, request: Any) -> Any:
            if isinstance(request, PullObjectRequest) and len(sent) == 1:
                fleet.forget(sent[0])
            return super()._call(call, request)

    worker = special(site, 0, Overtaken)
    with worker.connected():
        fleet.wait(60)
        sent.append(fleet.send(0, TASK, QUESTION))
        assert worker.receive() is None
        later = Frame({"question": 2}, {}).to_bytes()
        sent.append(fleet.send(0, TASK, later))
        incoming = received(worker)
        worker.answer(incoming, later)
        assert [each.message for each in replies(fleet, 1)] == sent[1:]


def test_an_answer_of_which_nothing_can_be_made_is_one_that_is_empty(
    site: Site, fleet: Fleet
) -> None:
    """Flower would make a message of the root of an answer, and this one is none."""

    class ByHand(Node):
        def _call(self, call: Any, request: Any) -> Any:
            if not isinstance(request, PushMessagesRequest):
                return super()._call(call, request)
            name = get_object_id(NO_MESSAGE)
            metadata = request.messages_list[0].metadata
            metadata.message_id = name
            request.message_object_trees[0].object_id = name
            reply = super()._call(call, request)
            part = PushObjectRequest(
                node=request.node,
                run_id=metadata.run_id,
                object_id=name,
                object_content=NO_MESSAGE,
                session_id=reply.session_id,
            )
            assert super()._call(self._messages.PushObject, part).stored
            return reply

    worker = special(site, 0, ByHand)
    with worker.connected():
        fleet.wait(60)
        fleet.send(0, TASK, QUESTION)
        worker.answer(received(worker), QUESTION)
        assert [each.content for each in replies(fleet, 1)] == [b""]


def test_an_answer_that_is_wanted_no_more_leaves_nothing_behind(site: Site, fleet: Fleet) -> None:
    worker = special(site, 0, Halting)
    with worker.connected():
        fleet.wait(60)
        asked = fleet.send(0, TASK, QUESTION)
        worker.answer(received(worker), QUESTION)
        worker.send(whole=False)
        fleet.forget(asked)
        assert worker.send(whole=True) == [True], "the worker is not told, and goes on"
        assert fleet.wait(0) == []
    assert stored(fleet) == 0


def test_a_worker_never_sees_a_message_before_its_parts(
    site: Site, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = fleet._state.store_object
    seen: list[int] = []

    def look_and_store(*arguments: Any) -> bool:
        seen.append(len(fleet._state.get_message_ins(fleet._nodes[0], limit=None)))
        return store(*arguments)

    monkeypatch.setattr(fleet._state, "store_object", look_and_store)
    with node(site, 0).connected():
        fleet.wait(60)
        fleet.send(0, TASK, QUESTION)
    assert seen == [0] * 5


def test_a_transfer_that_fails_leaves_nobody_sending(site: Site, fleet: Fleet) -> None:
    """The connection is closed next, and its number given to another: what is still sent under
    that number would go there."""
    failed = threading.Event()
    sending: set[str] = set()

    class Failing(Node):
        def _call(self, call: Any, request: Any) -> Any:
            if not isinstance(request, PushObjectRequest):
                return super()._call(call, request)
            sending.add(request.object_id)
            try:
                if len(sending) == 2:
                    failed.set()
                    raise DisconnectedError
                assert failed.wait(300)
                time.sleep(0.2)
                return super()._call(call, request)
            finally:
                sending.remove(request.object_id)

    worker = special(site, 0, Failing)
    worker._uplink.learn(2**20, 1e-3)  # so fast that two parts travel at once
    with worker.connected():
        fleet.wait(60)
        fleet.send(0, TASK, QUESTION)
        incoming = received(worker)
        with pytest.raises(DisconnectedError):
            worker.answer(incoming, QUESTION)
        assert not sending
