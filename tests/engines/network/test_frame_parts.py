"""Of the parts of a message no more is made than was sent."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("flwr", reason="the network engine needs flwr: pip install 'adaptcl[network]'")

from flwr.app import Metadata, RecordDict
from flwr.app.message import make_message
from flwr.app.message.arraychunk import ArrayChunk
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree

from adaptcl.engines.network.frames import frame_of, parts_of, to_record
from adaptcl.engines.network.keys import server_keys, worker_keys
from adaptcl.engines.network.messages import TASK
from adaptcl.engines.network.server import fleet as fleet_module
from adaptcl.engines.network.server.fleet import Fleet
from adaptcl.engines.network.worker import node as node_module
from adaptcl.engines.network.worker.node import Node
from adaptcl.errors import UpdateError

if TYPE_CHECKING:
    from tests.engines.network.conftest import Site

TIMES = 3000


def repeating(content: bytes, piece: int | None = None) -> RecordDict:
    """A record whose bytes are those of `content` many times over."""
    record: Any = to_record(content)
    chunk = ArrayChunk(memoryview(content))
    record["frame"]["frame"].__dict__["_chunks"] = [(chunk.object_id, chunk)] * TIMES
    return record  # type: ignore[no-any-return]


def travelling(record: RecordDict) -> tuple[ObjectTree, dict[str, bytes]]:
    """What is sent of a message: the names of its parts, and the parts."""
    message = make_message(Metadata(1, "", 2, 3, "", "", 4.0, 5.0, TASK), record)
    parts = {name: each.deflate() for name, each in get_all_nested_objects(message).items()}
    return get_object_tree(message), parts


@given(st.binary(max_size=4), st.integers(0, 60), st.integers(20, 40))
def test_what_repeats_itself_arrives_unchanged(some: bytes, times: int, piece: int) -> None:
    """A layer that is all zeros is nothing unusual."""
    content = some * times
    tree, parts = travelling(to_record(content, piece))
    assert set(parts_of(tree)) == parts.keys()
    assert frame_of(tree.object_id, parts, len(content) + 1000) == content


def test_a_piece_counts_once_however_often_it_is_listed() -> None:
    tree, parts = travelling(repeating(b"x"))
    with pytest.raises(UpdateError, match="twice"):
        frame_of(tree.object_id, parts, 2**30)


def test_a_message_has_no_more_bytes_than_it_may() -> None:
    tree, parts = travelling(to_record(os.urandom(3000), 1000))
    assert len(frame_of(tree.object_id, parts, 3100)) == 3000
    with pytest.raises(UpdateError, match="more than the 2999 bytes"):
        frame_of(tree.object_id, parts, 2999)


@given(st.integers(0, 4), st.integers(0, 400), st.integers(0, 255))
def test_parts_with_one_byte_changed_make_a_frame_or_an_error(
    which: int, where: int, byte: int
) -> None:
    tree, parts = travelling(to_record(b"content", 10))
    changed = bytearray(parts[(name := list(parts)[which])])
    changed[where % len(changed)] = byte
    parts[name] = bytes(changed)
    try:
        frame = frame_of(tree.object_id, parts, 100)
    except UpdateError:
        return
    assert len(frame) <= 100


@pytest.mark.parametrize(
    "spoil",
    [
        lambda tree: tree.children.add(object_id="f" * 64),
        lambda tree: tree.children[0].children[0].children.pop(),
        lambda tree: tree.children[0].children[0].children[0].children[0].children.add(),
        lambda tree: (
            tree.children[0].children[0].children[0].children.add(object_id=tree.object_id)
        ),
    ],
    ids=["two records", "no array", "pieces of pieces", "a part twice"],
)
def test_no_other_shape_is_taken(spoil: Callable[[ObjectTree], object]) -> None:
    tree, _ = travelling(to_record(b"content", 10))
    spoil(tree)
    with pytest.raises(UpdateError):
        parts_of(tree)


@pytest.fixture
def fleet(site: Site) -> Iterator[Fleet]:
    with Fleet(server_keys(site.keys, 1), "127.0.0.1", 0) as opened:
        site.address = f"localhost:{opened.address[1]}"
        yield opened


def test_neither_side_makes_of_a_piece_more_than_was_sent(
    site: Site, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Node(site.address, worker_keys(site.keys / "worker-0"), 3600.0)
    with worker.connected():
        fleet.wait(60)
        fleet.send(0, TASK, b"question")
        incoming = site.received(worker)
        monkeypatch.setattr(node_module, "to_record", repeating)
        worker.answer(incoming, bytes(2**12))
        assert site.reply(fleet).content == b""

        monkeypatch.setattr(fleet_module, "to_record", repeating)
        fleet.send(0, TASK, bytes(2**12))
        with pytest.raises(UpdateError, match="twice"):
            site.received(worker)


def test_a_worker_stops_fetching_what_is_larger_than_any_message(
    site: Site, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_module, "MESSAGE_BYTES", 2**20)  # Scaled down.
    worker = Node(site.address, worker_keys(site.keys / "worker-0"), 3600.0)
    with worker.connected():
        fleet.wait(60)
        fleet.send(0, TASK, os.urandom(2**21))
        with pytest.raises(UpdateError, match="larger than any can be"):
            site.received(worker)
