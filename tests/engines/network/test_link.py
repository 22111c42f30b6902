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
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.server.superlink.linkstate import in_memory_linkstate
from flwr.supercore.corestate import in_memory_corestate
from flwr.supercore.date import now

from adaptcl.engines.network.frames import Frame
from adaptcl.engines.network.keys import server_keys, worker_keys
from adaptcl.engines.network.messages import TASK
from adaptcl.engines.network.server import port as link_module
from adaptcl.engines.network.server.fleet import Fleet, Left, Replied
from adaptcl.engines.network.worker import node as node_module
from adaptcl.engines.network.worker.node import DisconnectedError, Node

if TYPE_CHECKING:
    from tests.engines.network.conftest import Site

QUESTION = Frame({"question": 1}, {}).to_bytes()


@pytest.fixture
def fleet(site: Site) -> Iterator[Fleet]:
    with Fleet(server_keys(site.keys, 1), "127.0.0.1", 0) as opened:
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
    site.wait_for(lambda: Left(0) in fleet.wait(1))
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
    assert Left(0) in happened
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
