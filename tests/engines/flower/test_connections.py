"""Connections on which nobody shows a key cost the run nothing, however many there are."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import ssl
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("flwr", reason="the network engine needs flwr: pip install 'adaptcl[network]'")

from adaptcl.engines.flower import connections
from adaptcl.engines.flower.fleet import Came, Fleet, Happening
from adaptcl.engines.flower.frames import Frame
from adaptcl.engines.flower.keys import server_keys, worker_keys
from adaptcl.engines.flower.messages import TASK
from adaptcl.engines.flower.node import DisconnectedError, Node
from adaptcl.engines.flower.turned_away import TurnedAway

if TYPE_CHECKING:
    from tests.engines.flower.conftest import Site

QUESTION = Frame({"question": 1}, {}).to_bytes()
FULL = "So many connections are open that those without a key are being closed."


@contextlib.contextmanager
def opened(site: Site) -> Iterator[Fleet]:
    with Fleet(server_keys(site.keys, 3), "127.0.0.1", 0) as fleet:
        site.address = f"localhost:{fleet.address[1]}"
        yield fleet


def idle(stack: contextlib.ExitStack, port: int) -> socket.socket:
    """A connection on which nothing is said."""
    return stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=300))


def is_closed(connection: socket.socket) -> bool:
    """Wait for the other end to close a connection."""
    with contextlib.suppress(ConnectionResetError):
        return connection.recv(2**16) == b""
    return True


def joined(stack: contextlib.ExitStack, site: Site, number: int) -> Node:
    """A worker that is connected. On a busy machine it may be turned out before it has shown its
    key, and then tries again, as a worker's process does."""
    while True:
        node = Node(site.address, worker_keys(site.keys / f"worker-{number}"), 3600.0)
        with contextlib.suppress(DisconnectedError):
            stack.enter_context(node.connected())
            return node


def happens(fleet: Fleet, wanted: Happening) -> bool:
    """Whether something happens among other things."""
    return any(wanted in fleet.wait(60) for _ in range(5))


def test_a_connection_on_which_no_key_is_shown_is_closed(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "KEY_WITHIN_S", 3.0)
    context = ssl.create_default_context(cafile=site.keys / "worker-0" / "authority.pem")
    with opened(site) as fleet, contextlib.ExitStack() as stack:
        joined(stack, site, 0)
        silent = idle(stack, site.port)
        slow = context.wrap_socket(idle(stack, site.port), server_hostname="localhost")
        slow.sendall(b"POST /v1/fleet/push-object HTTP/1.1\r\nhost: local")
        assert is_closed(silent)
        assert is_closed(slow)
        site.wait_for(lambda: not fleet._port._socket._keyless and not fleet._port._socket._leaving)
        assert fleet._port._socket._open


def test_a_worker_that_is_silent_for_long_keeps_its_connection(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "KEY_WITHIN_S", 1.0)
    with opened(site) as fleet, contextlib.ExitStack() as stack:
        worker = joined(stack, site, 0)
        assert happens(fleet, Came(0))
        before = set(fleet._port._socket._open)
        assert is_closed(idle(stack, site.port)), "which came later"
        assert before & fleet._port._socket._open
        fleet.send(0, TASK, QUESTION)
        assert worker.receive() is not None


def test_strangers_push_out_each_other_and_no_worker(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adaptcl.engines.flower.port.room_for", lambda workers: 20)
    with opened(site) as fleet, contextlib.ExitStack() as stack:
        first = joined(stack, site, 0)
        assert happens(fleet, Came(0))
        strangers = [idle(stack, site.port) for _ in range(100)]
        assert is_closed(strangers[0])
        assert len(fleet._port._socket._open) <= 20
        assert happens(fleet, TurnedAway(FULL))
        second = joined(stack, site, 1)
        assert happens(fleet, Came(1)), "a worker still gets in"
        for number, worker in enumerate((first, second)):
            fleet.send(number, TASK, QUESTION)
            assert worker.receive() is not None


def test_there_is_room_for_every_worker_and_never_for_more_than_half_of_the_files() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        assert connections.room_for(4) >= 16
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
        assert connections.room_for(10**9) <= before[1] // 2
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.skipif(sys.platform != "linux", reason="sets the limit of another process")
def test_a_flood_of_idle_connections_neither_ends_the_run_nor_fills_the_log(
    site: Site, free_port: int
) -> None:
    server = site.start_server(free_port, strategy="fedavg", rounds=1, workers=1)
    site.wait_until(server, "listening")
    # Fewer than there is room for: opening files fails in the middle of it.
    files = len(os.listdir(f"/proc/{server.pid}/fd")) + 40
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (files, files))
    with contextlib.ExitStack() as stack:
        flood = [idle(stack, free_port) for _ in range(150)]
        site.wait_until(server, FULL)
        worker = site.start_worker(0, free_port)
        assert site.ended(server) == 0
        assert site.ended(worker) == 0
        assert len(flood) == 150
    assert site.said(server).count("\n") < 40
    assert "Traceback" not in site.said(server)
