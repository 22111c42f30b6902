"""What workers say that their answers consist of is taken for no more than it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("flwr", reason="the network engine needs flwr: pip install 'adaptcl[network]'")

from flwr.app.message.arraychunk import ArrayChunk
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import ObjectTree

from adaptcl.engines.network.frames import parts_of, tree_of
from adaptcl.engines.network.keys import server_keys, worker_keys
from adaptcl.engines.network.messages import INVITE, Answer
from adaptcl.engines.network.server.fleet import Fleet
from adaptcl.engines.network.server.port import Objects
from adaptcl.engines.network.worker.node import DisconnectedError, Incoming, Node
from adaptcl.errors import UpdateError

if TYPE_CHECKING:
    from tests.engines.network.conftest import Site

ANSWER = Answer(fingerprint="that of everybody").frame().to_bytes()


@pytest.fixture
def fleet(site: Site) -> Iterator[Fleet]:
    with Fleet(server_keys(site.keys, 2), "127.0.0.1", 0) as opened:
        site.address = f"localhost:{opened.address[1]}"
        yield opened


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


def invited(site: Site, fleet: Fleet, worker: Node, number: int) -> Incoming:
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
        incoming = invited(site, fleet, worker, 0)
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
        asked = invited(site, fleet, lying, 0)
        lying.answer(asked, ANSWER)
        honest.answer(invited(site, fleet, honest, 1), ANSWER)
        arrived = site.reply(fleet)
        assert (arrived.worker, arrived.content) == (1, ANSWER)
        fleet.forget(asked.metadata.message_id)
        assert len(fleet._objects) == 0


def test_a_message_has_the_parts_it_was_first_announced_with() -> None:
    store = Objects()
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
