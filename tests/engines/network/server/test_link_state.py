"""The run goes on for as long as its server does, and leaves nothing behind on the way."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("flwr", reason="the network engine needs flwr: pip install 'adaptcl[network]'")

from flwr.app.message.arraychunk import ArrayChunk
from flwr.common.constant import SubStatus
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import ObjectTree, PushObjectRequest
from flwr.server.superlink.linkstate import in_memory_linkstate
from flwr.supercore.corestate import in_memory_corestate
from flwr.supercore.date import now

from adaptcl.engines.network.frames import Frame, parts_of, tree_of
from adaptcl.engines.network.invitation import Reply
from adaptcl.engines.network.keys import server_keys, worker_keys
from adaptcl.engines.network.messages import INVITE, TASK
from adaptcl.engines.network.server import link_state as link_module
from adaptcl.engines.network.server.fleet import Fleet, Left, Replied
from adaptcl.engines.network.server.link_state import MessageParts
from adaptcl.engines.network.worker import node as node_module
from adaptcl.engines.network.worker.node import DisconnectedError, Incoming, Node
from adaptcl.errors import UpdateError

if TYPE_CHECKING:
    from tests.engines.network.conftest import Site

QUESTION = Frame({"question": 1}, {}).to_bytes()
ANSWER = Reply(error="that of everybody").frame().to_bytes()


@pytest.fixture
def fleet(site: Site) -> Iterator[Fleet]:
    with Fleet(server_keys(site.keys, 2), "127.0.0.1", 0) as opened:
        site.address = f"localhost:{opened.address[1]}"
        yield opened


def node(site: Site) -> Node:
    return Node(site.address, worker_keys(site.keys / "worker-0"), 3600.0)


def test_a_run_survives_a_pause_of_its_server(
    site: Site, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its machine was asleep, or its clock has been set."""

    def later() -> datetime:
        return now() + timedelta(minutes=10)

    worker = node(site)
    with worker.connected():
        fleet.wait(60)
        for module in (in_memory_corestate, in_memory_linkstate):
            monkeypatch.setattr(module, "now", later)
        asked = fleet.send(0, TASK, QUESTION)
        worker.answer(site.received(worker), QUESTION)
        assert site.reply(fleet).message == asked


def test_a_server_without_a_run_is_one_to_wait_for(site: Site, fleet: Fleet) -> None:
    worker = node(site)
    with worker.connected():
        fleet.wait(60)
        fleet.send(0, TASK, QUESTION)
        incoming = site.received(worker)
        (run,) = fleet._state.get_run_info()
        assert run.primary_task_id is not None
        fleet._state.finish_task(run.primary_task_id, SubStatus.STOPPED, "")
        with pytest.raises(DisconnectedError, match="no run under way"):
            worker.answer(incoming, QUESTION)


def kept(fleet: Fleet) -> tuple[int, int, int]:
    """How many objects, sessions and messages the server holds."""
    return (
        len(fleet._objects),
        len(fleet._state._object_push_sessions),
        len(fleet._state.message_ins_store) + len(fleet._state.message_res_store),
    )


def test_a_worker_that_leaves_without_an_answer_leaves_nothing_behind(
    site: Site, fleet: Fleet
) -> None:
    worker = node(site)
    with worker.connected():
        fleet.wait(60)
        fleet.send(0, TASK, QUESTION)
        site.received(worker)
        fleet.send(0, TASK, QUESTION)
    site.wait_for(lambda: Left(0, said_goodbye=True) in fleet.wait(1))
    for _ in range(10):
        fleet._look()
    assert kept(fleet) == (0, 0, 0)


def test_a_worker_that_answers_and_leaves_has_answered(site: Site, fleet: Fleet) -> None:
    worker = node(site)
    with worker.connected():
        fleet.wait(60)
        fleet.send(0, TASK, QUESTION)
        worker.answer(site.received(worker), QUESTION)
    fleet._ticked = -math.inf  # So that the server sees both at once.
    happened = fleet.wait(60)
    assert Left(0, said_goodbye=True) in happened
    assert [each.content for each in happened if isinstance(each, Replied)] == [QUESTION]
    assert kept(fleet) == (0, 0, 0)


class Repeating(Node):
    """A worker that announces each answer again, with other parts, and sends those."""

    taken = True

    def _call(self, call: Any, request: Any) -> Any:
        reply = super()._call(call, request)
        if isinstance(request, PushMessagesRequest):
            chunk = ArrayChunk(memoryview(os.urandom(1000)))
            tree = request.message_object_trees[0].children[0].children[0].children[0]
            tree.children.add(object_id=chunk.object_id)
            again = super()._call(call, request)
            self.taken = (
                super()
                ._call(
                    self._messages.PushObject,
                    PushObjectRequest(
                        node=request.node,
                        run_id=request.messages_list[0].metadata.run_id,
                        object_id=chunk.object_id,
                        object_content=chunk.deflate(),
                        session_id=again.session_id,
                    ),
                )
                .stored
            )
        return reply


def test_an_answer_announced_twice_leaves_nothing_behind(site: Site, fleet: Fleet) -> None:
    worker = Repeating(site.address, worker_keys(site.keys / "worker-0"), 3600.0)
    with worker.connected():
        fleet.wait(60)
        fleet.send(0, TASK, QUESTION)
        worker.answer(site.received(worker), QUESTION)
        assert site.reply(fleet).content == QUESTION
        assert not worker.taken
        assert kept(fleet) == (0, 0, 0)


def test_an_answer_that_comes_too_late_leaves_nothing_behind(
    site: Site, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = node(site)
    with worker.connected():
        fleet.wait(60)
        asked = fleet.send(0, TASK, QUESTION)
        incoming = site.received(worker)
        fleet.forget(asked)
        worker.answer(incoming, QUESTION)
        assert kept(fleet) == (0, 0, 0)

        asked = fleet.send(0, TASK, QUESTION)
        incoming = site.received(worker)
        monkeypatch.setattr(node_module, "make_push_object_fn_protobuf", never_sending)
        worker.answer(incoming, QUESTION)
        fleet.forget(asked)
        assert kept(fleet) == (0, 1, 0), "it may still be sent"
        monkeypatch.setattr(link_module, "now", lambda: now() + timedelta(hours=1))
        fleet._ticked = -math.inf
        fleet.wait(0)
        assert kept(fleet) == (0, 0, 0)


def never_sending(*_: object) -> Callable[[str, bytes], None]:
    return lambda name, content: None


class Announcing(Node):
    """A worker that says something else of what its answers consist of."""

    def __init__(self, site: Site, number: int, announce: Callable[[ObjectTree], object]) -> None:
        super().__init__(site.address, worker_keys(site.keys / f"worker-{number}"), 3600.0)
        self._announce = announce

    def _call(self, call: Any, request: Any) -> Any:
        if isinstance(request, PushMessagesRequest):
            self._announce(request.message_object_trees[0])
        return super()._call(call, request)


def honestly(tree: ObjectTree) -> None:
    """Leave it as it is."""


def invite(site: Site, fleet: Fleet, worker: Node, number: int) -> Incoming:
    fleet.send(number, INVITE, b"question")
    return site.received(worker)


def branching(tree: ObjectTree) -> None:
    """Parts of which each has the next one eight times, but spells it out once."""
    inner = ObjectTree(object_id=f"{0:064x}")
    for level in range(1, 30):
        again = [ObjectTree(object_id=inner.object_id)] * 7
        inner = ObjectTree(object_id=f"{level:064x}", children=[inner, *again])
    del tree.children[:]
    tree.children.append(inner)


def renamed(tree: ObjectTree) -> None:
    tree.object_id = "f" * 64


@pytest.mark.parametrize("announce", [branching, renamed])
def test_an_answer_that_has_not_the_shape_of_one_is_refused_before_anything_is_kept(
    site: Site, fleet: Fleet, announce: Callable[[ObjectTree], object]
) -> None:
    worker = Announcing(site, 0, announce)
    with worker.connected():
        site.wait_for(lambda: fleet.connected or fleet.wait(1))
        incoming = invite(site, fleet, worker, 0)
        with pytest.raises(DisconnectedError, match="The answer"):
            worker.answer(incoming, ANSWER)
        assert fleet.wait(0) == []
        assert len(fleet._objects) == 0


def test_what_one_worker_says_of_a_part_is_nothing_to_another(site: Site, fleet: Fleet) -> None:
    """Workers that answer the same announce the same parts, and one knows those of the others."""

    def with_other_pieces(tree: ObjectTree) -> None:
        pieces = tree.children[0].children[0].children[0].children
        del pieces[:]
        pieces.append(ObjectTree(object_id="e" * 64))

    lying, honest = Announcing(site, 0, with_other_pieces), Announcing(site, 1, honestly)
    with lying.connected(), honest.connected():
        site.wait_for(lambda: len(fleet.connected) == 2 or fleet.wait(1))
        asked = invite(site, fleet, lying, 0)
        lying.answer(asked, ANSWER)
        honest.answer(invite(site, fleet, honest, 1), ANSWER)
        arrived = site.reply(fleet)
        assert (arrived.worker, arrived.content) == (1, ANSWER)
        fleet.forget(asked.metadata.message_id)
        assert len(fleet._objects) == 0


def test_a_message_has_the_parts_it_was_first_announced_with() -> None:
    store = MessageParts()
    chunk = ArrayChunk(memoryview(b"piece"))
    parts = [chunk.object_id, *(letter * 64 for letter in "abcd")]
    assert store.preregister(1, tree_of(parts)) == parts
    store.put(chunk.object_id, chunk.deflate())
    assert store.preregister(1, tree_of(parts)) == parts[1:]
    with pytest.raises(UpdateError, match="announced with other parts"):
        store.preregister(1, tree_of(["e" * 64, *parts]))
    assert parts_of(store.get_object_tree(parts[-1])) == parts

    store.preregister(1, tree_of([*parts[:-1], "f" * 64]))
    store.delete(parts[-2])
    assert len(store) == 6, "what is no message cannot be deleted alone"
    store.delete(parts[-1])
    store.delete(parts[-1])
    assert (len(store), store.get(chunk.object_id)) == (5, chunk.deflate())
    store.delete("f" * 64)
    assert len(store) == 0
