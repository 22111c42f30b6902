"""What a message costs beyond its bytes and its training."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import torch

pytest.importorskip("flwr", reason="the network engine needs flwr: pip install 'adaptcl[network]'")

from adaptcl.engines.network.frames import Frame
from adaptcl.engines.network.keys import server_keys, worker_keys
from adaptcl.engines.network.messages import END, TASK
from adaptcl.engines.network.server.fleet import Came, Fleet, Replied
from adaptcl.engines.network.worker.node import Node

if TYPE_CHECKING:
    from tests.engines.network.conftest import Relay, Site


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
            assert isinstance(happening, Replied), happening
            return happening.content


def test_the_wire_carries_at_most_two_per_cent_more_than_the_tensors(
    connected: tuple[Fleet, Relay],
) -> None:
    fleet, relay = connected
    for megabytes in (1, 20):
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
