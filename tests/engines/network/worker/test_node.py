"""A slow link costs time, and nothing else."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("flwr", reason="the network engine needs flwr: pip install 'adaptcl[network]'")

import httpx
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.supercore.constant import OBJECT_PUSH_SESSION_TTL_SECONDS

from adaptcl.engines.network.frames import Frame, from_record, to_record
from adaptcl.engines.network.keys import server_keys, worker_keys
from adaptcl.engines.network.messages import END, TASK
from adaptcl.engines.network.server.fleet import Came, Fleet, Progressed, Replied
from adaptcl.engines.network.worker.node import (
    LEAST_BYTES,
    MOST_BYTES,
    PIECE_S,
    Incoming,
    Node,
    Uplink,
)

if TYPE_CHECKING:
    from tests.engines.network.conftest import Relay, Site

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
        content = os.urandom(200 * KIB)
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


# What a message costs beyond its bytes --------------------------------------------------------


@pytest.fixture
def connected(site: Site) -> Iterator[tuple[Fleet, Relay]]:
    """A server, and a worker that sends back what it gets, over a relay."""
    with Fleet(server_keys(site.keys, 1), "127.0.0.1", 0) as fleet:
        relay = site.relay(fleet.address[1])

        def echo() -> None:
            node = Node(f"localhost:{relay.port}", worker_keys(site.keys / "worker-0"), 3600.0)
            with node.connected():
                while True:
                    incoming = node.receive()
                    if incoming is not None:
                        node.answer(incoming, incoming.content)
                        if incoming.kind == END:
                            return

        thread = threading.Thread(target=echo, daemon=True)
        thread.start()
        assert fleet.wait(60) == [Came(0)]
        yield fleet, relay
        exchange(fleet, Frame({}, {}).to_bytes(), END)
        thread.join()


def exchange(fleet: Fleet, content: bytes, kind: str = TASK) -> bytes:
    fleet.send(0, kind, content)
    while True:
        for happening in fleet.wait(60):
            assert isinstance(happening, Replied | Progressed), happening
            if isinstance(happening, Replied):
                return happening.content


def test_the_wire_carries_at_most_two_per_cent_more_than_the_tensors(
    connected: tuple[Fleet, Relay],
) -> None:
    fleet, relay = connected
    for megabytes in (1, 8):
        content = Frame({}, {"a": torch.rand(megabytes * 2**18)}).to_bytes()
        before = relay.carried
        assert exchange(fleet, content) == content
        assert relay.carried - before < 1.02 * 2 * megabytes * 2**20


def test_messages_one_after_the_other_travel_on_the_connections_that_are_there(
    connected: tuple[Fleet, Relay],
) -> None:
    """A new connection would cost every message a TLS handshake, which is what most of an empty
    message would then take."""
    fleet, relay = connected
    for warm in range(3):
        exchange(fleet, Frame({"warm": warm}, {}).to_bytes())
    connections, before, began = relay.connections, relay.carried, time.perf_counter()
    for number in range(10):
        exchange(fleet, Frame({"round": number}, {}).to_bytes())
    taken = time.perf_counter() - began
    print(f"an empty message and its answer take {100 * taken:.0f} ms")
    # Two parts of a message may travel at once, and httpx drops a connection unused for 5 s.
    assert relay.connections - connections <= 2 + 2 * int(taken / 5)
    assert relay.carried - before < 10 * 40_000


def test_small_answers_leave_the_server_at_once(connected: tuple[Fleet, Relay]) -> None:
    """Or each of a message's requests would wait 40 ms for more to be sent with it."""
    fleet, _ = connected
    exchange(fleet, Frame({}, {}).to_bytes())
    served = list(fleet._port._uvicorn.server_state.connections)
    assert served
    for each in served:
        its_socket = each.transport.get_extra_info("socket")
        assert its_socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
