"""A slow link costs time, and nothing else."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("flwr", reason="the network engine needs flwr: pip install 'adaptcl[network]'")

import httpx
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.supercore.constant import OBJECT_PUSH_SESSION_TTL_SECONDS

from adaptcl.engines.network.frames import from_record, to_record
from adaptcl.engines.network.keys import server_keys, worker_keys
from adaptcl.engines.network.messages import TASK
from adaptcl.engines.network.server.fleet import Fleet
from adaptcl.engines.network.worker.node import (
    LEAST_BYTES,
    MOST_BYTES,
    PIECE_S,
    Incoming,
    Node,
    Uplink,
)

if TYPE_CHECKING:
    from tests.engines.network.conftest import Site

KIB = 1024


@pytest.fixture
def fleet(site: Site) -> Iterator[Fleet]:
    with Fleet(server_keys(site.keys, 1), "127.0.0.1", 0) as opened:
        yield opened


class Counting(Node):
    """A worker that notes how large the parts of its answers are."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.parts: list[int] = []
        self.most_at_once = 0
        self._under_way = 0
        self._lock = threading.Lock()

    def _call(self, call: Any, request: Any) -> Any:
        if not isinstance(request, PushObjectRequest):
            return super()._call(call, request)
        with self._lock:
            self.parts.append(len(request.object_content))
            self._under_way += 1
            self.most_at_once = max(self.most_at_once, self._under_way)
        try:
            return super()._call(call, request)
        finally:
            with self._lock:
                self._under_way -= 1


def asked(site: Site, fleet: Fleet, worker: Node) -> Incoming:
    fleet.send(0, TASK, os.urandom(3 * MOST_BYTES))
    return site.received(worker)


def test_an_answer_that_takes_longer_than_any_other_call_may_arrives(
    site: Site, fleet: Fleet
) -> None:
    relay = site.relay(fleet.address[1], upward=100 * KIB)
    worker = Counting(f"localhost:{relay.port}", worker_keys(site.keys / "worker-0"), 3600.0)
    with worker.connected():
        site.wait_for(lambda: fleet.wait(1))
        incoming = asked(site, fleet, worker)
        # Scaled down: a call that fetches may be silent for 30 s.
        worker._messages._client.timeout = httpx.Timeout(1.0)
        content = os.urandom(300 * KIB)
        worker.answer(incoming, content)
        assert site.reply(fleet).content == content
    assert max(worker.parts) <= LEAST_BYTES + 100
    assert worker.most_at_once == 1, "they would hold up the worker's signs of life"


def test_over_a_fast_link_later_answers_travel_in_few_pieces(site: Site, fleet: Fleet) -> None:
    worker = Counting(f"localhost:{fleet.address[1]}", worker_keys(site.keys / "worker-0"), 3600.0)
    content = os.urandom(3 * MOST_BYTES)
    with worker.connected():
        site.wait_for(lambda: fleet.wait(1))
        for size in (LEAST_BYTES, MOST_BYTES):
            worker._uplink.learn(len(content), len(content) / 1e9 if size == MOST_BYTES else 1e9)
            worker.parts.clear()
            worker.answer(asked(site, fleet, worker), content)
            assert site.reply(fleet).content == content
            assert size <= max(worker.parts) < size + 100


def test_what_a_worker_sends_is_a_sign_of_life(site: Site, fleet: Fleet) -> None:
    """Its heartbeats may wait behind it."""
    worker = Node(f"localhost:{fleet.address[1]}", worker_keys(site.keys / "worker-0"), 3600.0)
    with worker.connected():
        site.wait_for(lambda: fleet.wait(1))
        incoming = asked(site, fleet, worker)
        (before,) = fleet._state.get_node_info()
        until = before.online_until
        worker.answer(incoming, b"content")
        (after,) = fleet._state.get_node_info()
        assert after.online_until > until
        assert after.last_activated_at == before.last_activated_at, "it has not come anew"


@given(st.floats(1.0, 1e12))
def test_pieces_are_what_a_link_carries_in_some_seconds(rate: float) -> None:
    uplink = Uplink()
    uplink.learn(10 * MOST_BYTES, 10 * MOST_BYTES / rate)
    pieces = uplink.pieces()
    assert LEAST_BYTES <= pieces.size <= MOST_BYTES
    together = pieces.size * pieces.at_once
    assert together == LEAST_BYTES or together <= 4.1 * rate
    if rate > 1000:
        assert together / rate < PIECE_S < OBJECT_PUSH_SESSION_TTL_SECONDS


def test_nothing_is_learned_from_a_small_answer() -> None:
    uplink = Uplink()
    uplink.learn(100, 1e-9)
    assert (uplink.pieces().size, uplink.pieces().at_once) == (LEAST_BYTES, 1)


@pytest.mark.parametrize("size", [0, 1, 10, 11, 25])
def test_a_record_travels_in_pieces_of_the_size_asked_for(size: int) -> None:
    content = os.urandom(size)
    record = to_record(content, 10)
    arrays: Any = record["frame"]
    pieces = [bytes(chunk.data) for _, chunk in arrays["frame"].slice_array()]
    assert pieces == [content[at : at + 10] for at in range(0, size, 10)]
    assert from_record(record) == content
