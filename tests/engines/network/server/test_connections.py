"""Connections on which nobody proves a key cost the run nothing, however many there are, and those
on which somebody does have their limits."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import ssl
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("flwr", reason="the network engine needs flwr: pip install 'adaptcl[network]'")

from cryptography.hazmat.primitives.asymmetric import ec
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import sign_message

from adaptcl.engines.network.frames import Frame
from adaptcl.engines.network.keys import public_pem, server_keys, worker_keys
from adaptcl.engines.network.messages import TASK
from adaptcl.engines.network.server import connections
from adaptcl.engines.network.server import connections as body
from adaptcl.engines.network.server.admission import TurnedAway
from adaptcl.engines.network.server.fleet import Came, Fleet, FleetEvent
from adaptcl.engines.network.worker.node import DisconnectedError, Node
from adaptcl.errors import SettingError

if TYPE_CHECKING:
    from tests.engines.network.conftest import Site

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
        # Nor may the flood have left a file to read the key from, as it is in this process.
        with contextlib.suppress(DisconnectedError, SettingError):
            node = Node(site.address, worker_keys(site.keys / f"worker-{number}"), 3600.0)
            stack.enter_context(node.connected())
            return node


def happens(fleet: Fleet, wanted: FleetEvent) -> bool:
    """Whether something happens among other things."""
    return any(wanted in fleet.wait(60) for _ in range(5))


def beginning(
    stack: contextlib.ExitStack, site: Site, signer: ec.EllipticCurvePrivateKey | None = None
) -> ssl.SSLSocket:
    """A connection with the head of a request that shows worker 0's key, and nothing of the body;
    signed by worker 0 if by nobody else."""
    context = ssl.create_default_context(cafile=site.keys / "worker-0" / "authority.pem")
    connection = context.wrap_socket(idle(stack, site.port), server_hostname="localhost")
    connection.settimeout(20)
    own, stamp = worker_keys(site.keys / "worker-0").key, now().isoformat()
    headers = {
        "host": "localhost",
        "content-type": "application/protobuf",
        "content-length": "8192",
        FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(public_pem(own)).decode(),
        TIMESTAMP_HEADER: stamp,
        FLEET_HTTP_SIGNATURE_HEADER: b64encode(
            sign_message(signer or own, stamp.encode())
        ).decode(),
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    connection.sendall(f"POST /v1/fleet/push-object HTTP/1.1\r\n{lines}\r\n".encode())
    return connection


def status(connection: ssl.SSLSocket) -> int:
    """Of the answer to a request, which is read to its end."""
    answer = b""
    while not answer.endswith(b"}"):
        answer += connection.recv(2**16)
    return int(answer.split()[1])


def test_who_has_a_workers_public_key_only_is_a_stranger_and_holds_no_place(site: Site) -> None:
    with opened(site) as fleet, contextlib.ExitStack() as stack:
        forged = beginning(stack, site, signer=ec.generate_private_key(ec.SECP384R1()))
        assert status(forged) == 401, "before any of its body has come"
        assert is_closed(forged)
        assert not any(fleet._port._socket._of.values())


def test_a_worker_holds_a_few_connections_and_beyond_them_gives_up_its_oldest(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adaptcl.engines.network.server.port.room_for", lambda workers: 20)
    with opened(site) as fleet, contextlib.ExitStack() as stack:
        held = [beginning(stack, site) for _ in range(20)]
        assert is_closed(held[0])
        assert (
            len(fleet._port._socket._of[public_pem(worker_keys(site.keys / "worker-0").key)]) <= 8
        )
        other = joined(stack, site, 1)
        assert happens(fleet, Came(1)), "another worker still gets in"
        fleet.send(1, TASK, QUESTION)
        assert other.receive() is not None


def test_a_body_that_does_not_get_on_ends_and_a_slow_one_does_not(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body, "PERIOD_S", 1.0)
    with opened(site), contextlib.ExitStack() as stack:
        stuck, slow = beginning(stack, site), beginning(stack, site)
        stuck.sendall(b"x")
        for _ in range(8):
            slow.sendall(bytes(2**10))
            time.sleep(0.2)
        assert status(slow) == 400, "it was read to its end, which is no message"
        assert status(stuck) == 408
        assert is_closed(stuck)


def test_a_request_after_the_first_has_to_get_on_too(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "IDLE_S", 0.3)
    monkeypatch.setattr(connections, "_HEAD_S", 0.3)
    with opened(site), contextlib.ExitStack() as stack:
        connection = beginning(stack, site)
        connection.sendall(bytes(2**13))
        assert status(connection) == 400
        connection.sendall(b"POST /v1/fleet/push-object HTTP/1.1\r\nhost: local")
        assert is_closed(connection)


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
    monkeypatch.setattr("adaptcl.engines.network.server.port.room_for", lambda workers: 20)
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


FLOOD = """
import socket, sys
flood = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(150)]
print("flooding", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts open files as Linux shows them")
def test_a_flood_of_idle_connections_neither_ends_the_server_nor_fills_the_log(site: Site) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    told: list[FleetEvent] = []
    with opened(site) as fleet, contextlib.ExitStack() as stack:
        # Fewer than there is room for: opening files fails in the middle of it.
        files = len(os.listdir("/proc/self/fd")) + 40
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        flood = subprocess.Popen(
            [sys.executable, "-c", FLOOD, str(site.port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        stack.enter_context(flood)
        stack.callback(flood.kill)
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, before[1]))
        assert flood.stdout is not None
        assert flood.stdout.readline() == b"flooding\n"
        worker = joined(stack, site, 0)
        while not {Came(0), TurnedAway(FULL)} <= set(told):
            told += fleet.wait(60)
        fleet.send(0, TASK, QUESTION)
        assert site.received(worker).content == QUESTION
    assert len(told) < 10
