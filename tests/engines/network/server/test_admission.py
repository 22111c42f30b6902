"""An intruder on the network, who can speak TLS and Flower but has no rights, gets nowhere."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("flwr", reason="the network engine needs flwr: pip install 'adaptcl[network]'")

import httpx
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Metadata, RecordDict
from flwr.app.message import make_message
from flwr.common.constant import SUPERLINK_NODE_ID, TIMESTAMP_HEADER
from flwr.common.serde import message_to_proto
from flwr.proto.control_pb2 import RegisterNodeRequest, StartRunRequest
from flwr.proto.fab_pb2 import Fab
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
)
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PushObjectRequest
from flwr.proto.node_pb2 import Node as NodeProto
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import sign_message
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from starlette.types import Message, Receive, Scope, Send

from adaptcl.engines.network.frames import Frame
from adaptcl.engines.network.keys import ServerKeys, public_pem, server_keys, worker_keys
from adaptcl.engines.network.messages import END, TASK
from adaptcl.engines.network.server.admission import KeyFilter, RefusalLog, TurnedAway
from adaptcl.engines.network.server.connections import ListeningSocket
from adaptcl.engines.network.server.fleet import Came, Fleet
from adaptcl.engines.network.worker.node import Node, OccupiedError

if TYPE_CHECKING:
    from tests.engines.network.conftest import Site

PROTOBUF = {"content-type": "application/protobuf"}


@pytest.fixture
def fleet(site: Site) -> Iterator[Fleet]:
    with Fleet(server_keys(site.keys, 3), "127.0.0.1", 0) as opened:
        site.address = f"localhost:{opened.address[1]}"
        yield opened


@pytest.fixture
def stranger(site: Site, fleet: Fleet) -> Iterator[httpx.Client]:
    """Somebody who trusts the server, but whom the server does not know."""
    context = ssl.create_default_context(
        cadata=(site.keys / "worker-0" / "authority.pem").read_text()
    )
    with httpx.Client(base_url=f"https://{site.address}", verify=context) as client:
        yield client


def signed(site: Site, key: ec.EllipticCurvePrivateKey) -> FleetHttpClient:
    """A client that signs with a key of its own, as Flower's does."""
    authority = (site.keys / "worker-0" / "authority.pem").read_bytes()
    return FleetHttpClient.from_server_address(
        site.address, False, authority, [NodeAuthHttpInterceptor(key, key.public_key())]
    )


def refused(call: object, request: object) -> int:
    with pytest.raises(httpx.HTTPStatusError) as caught:
        call(request)  # type: ignore[operator]
    return caught.value.response.status_code


def nodes(fleet: Fleet) -> int:
    return len(fleet._state.get_node_info())


def test_nothing_but_a_workers_calls_exists(stranger: httpx.Client, fleet: Fleet) -> None:
    start = StartRunRequest(fab=Fab(hash_str="x", content=b"evil")).SerializeToString()
    register = RegisterNodeRequest(public_key=b"x").SerializeToString()
    contents = {"control/start-run": start, "control/register-node": register}
    calls = [
        *("control/start-run", "control/register-node", "control/list-nodes"),
        *("fleet/register-node", "fleet/unregister-node", "fleet/get-fab", "fleet/get-run"),
        *("runtime/push-messages", "runtime/acquire-task"),
    ]
    for path in ("/docs", "/openapi.json", "/", *(f"/v1/{call}" for call in calls)):
        content = contents.get(path.removeprefix("/v1/"), b"")
        assert stranger.post(path, content=content, headers=PROTOBUF).status_code == 404, path
        assert stranger.get(path).status_code == 404, path
    assert nodes(fleet) == 3
    assert len(fleet._state.get_run_info()) == 1


def test_a_registered_worker_cannot_submit_runs_or_register_keys_either(
    site: Site, fleet: Fleet
) -> None:
    key = worker_keys(site.keys / "worker-0").key
    other = ec.generate_private_key(ec.SECP384R1())
    request = RegisterNodeFleetRequest(public_key=public_pem(other))
    with signed(site, key) as client:
        assert refused(client.RegisterNode, request) == 404
    assert nodes(fleet) == 3


def test_a_key_that_was_not_made_for_the_run_opens_nothing(site: Site, fleet: Fleet) -> None:
    key = ec.generate_private_key(ec.SECP384R1())
    request = ActivateNodeRequest(public_key=public_pem(key), heartbeat_interval=10)
    with signed(site, key) as client:
        for _ in range(3):
            assert refused(client.ActivateNode, request) == 403
    why = "A machine at 127.0.0.1 was turned away: its key is not known here."
    assert fleet.wait(60) == [TurnedAway(why)]
    assert fleet.wait(0.3) == [], "the log says it once"


def test_a_worker_for_whom_the_run_has_no_place_is_told_which_have_one(site: Site) -> None:
    key = worker_keys(site.keys / "worker-2").key
    request = ActivateNodeRequest(public_key=public_pem(key), heartbeat_interval=10)
    for workers, taken in ((2, "takes keys 0 to 1"), (1, "takes key 0 only")):
        with Fleet(server_keys(site.keys, workers), "127.0.0.1", 0) as fleet:
            site.address = f"localhost:{fleet.address[1]}"
            with signed(site, key) as client, pytest.raises(httpx.HTTPStatusError) as caught:
                client.ActivateNode(request)
            why = f"this run {taken}, and this is key 2."
            assert caught.value.response.json() == {"detail": why}
            line = f"A worker at 127.0.0.1 was turned away: {why}"
            assert fleet.wait(60) == [TurnedAway(line)]


def test_the_log_says_when_two_workers_have_the_same_key(site: Site, fleet: Fleet) -> None:
    with Node(site.address, worker_keys(site.keys / "worker-0"), 3600.0).connected():
        assert fleet.wait(60) == [Came(0)]
        with pytest.raises(OccupiedError):
            Node(site.address, worker_keys(site.keys / "worker-0"), 3600.0).connected().__enter__()
        line = (
            "A machine at 127.0.0.1 with the key of worker 0 was turned away: another with the "
            "same key is connected."
        )
        assert fleet.wait(60) == [TurnedAway(line)]


def test_a_known_public_key_without_its_private_half_opens_nothing(
    site: Site, fleet: Fleet, stranger: httpx.Client
) -> None:
    known = public_pem(worker_keys(site.keys / "worker-0").key)
    request = ActivateNodeRequest(public_key=known, heartbeat_interval=10)
    forged = ec.generate_private_key(ec.SECP384R1()).sign(b"x", ec.ECDSA(hashes.SHA256()))
    headers = {
        **PROTOBUF,
        FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(known).decode(),
        TIMESTAMP_HEADER: now().isoformat(),
        FLEET_HTTP_SIGNATURE_HEADER: b64encode(forged).decode(),
    }
    reply = stranger.post(
        "/v1/fleet/activate-node", content=request.SerializeToString(), headers=headers
    )
    assert reply.status_code == 401
    assert fleet.wait(0.3) == []


def test_a_worker_cannot_answer_or_ask_in_anothers_name(site: Site, fleet: Fleet) -> None:
    victim, attacker = fleet._nodes[0], fleet._nodes[1]
    attacking = Node(site.address, worker_keys(site.keys / "worker-1"), 3600.0)
    attacked = Node(site.address, worker_keys(site.keys / "worker-0"), 3600.0)
    with attacked.connected(), attacking.connected():
        assert {h.worker for h in fleet.wait(60) if isinstance(h, Came)} == {0, 1}
        asked = fleet.send(0, TASK, Frame({}, {}).to_bytes())
        with signed(site, worker_keys(site.keys / "worker-1").key) as client:
            theirs = PullMessagesRequest(node=NodeProto(node_id=victim))
            assert refused(client.PullMessages, theirs) == 401
            for claimed in (victim, attacker):
                metadata = Metadata(
                    fleet._run, "m" * 64, victim, SUPERLINK_NODE_ID, asked, "", 2e9, 9.0, TASK
                )
                forged = PushMessagesRequest(
                    node=NodeProto(node_id=claimed),
                    messages_list=[message_to_proto(make_message(metadata, RecordDict()))],
                    message_object_trees=[ObjectTree(object_id="a" * 64)],
                )
                expected = 401 if claimed == victim else 403
                assert refused(client.PushMessages, forged) == expected
        assert fleet.wait(0.5) == []


def test_confirming_what_was_never_sent_leaves_nothing_behind(site: Site, fleet: Fleet) -> None:
    key = worker_keys(site.keys / "worker-0").key
    with contextlib.closing(signed(site, key)) as client:
        own = client.ActivateNode(
            ActivateNodeRequest(public_key=public_pem(key), heartbeat_interval=60)
        )
        fleet.wait(60)
        message = fleet.send(0, TASK, Frame({}, {}).to_bytes())

        def confirm(node: int, name: str) -> ConfirmMessageReceivedRequest:
            return ConfirmMessageReceivedRequest(
                node=NodeProto(node_id=node), run_id=fleet._run, message_object_id=name
            )

        for number in range(10):
            client.ConfirmMessageReceived(confirm(own.node_id, f"{number}" * 1000))
        assert list(fleet._calls._awaited) == [message]
        assert fleet._calls.received(message, -1.0) == -1.0
        client.ConfirmMessageReceived(confirm(own.node_id, message))
        assert fleet._calls.received(message, -1.0) > 0
        fleet.forget(message)
        client.ConfirmMessageReceived(confirm(own.node_id, message))
        assert not fleet._calls._awaited


def test_a_message_is_confirmed_by_the_worker_it_is_for(site: Site, fleet: Fleet) -> None:
    with (
        Node(site.address, worker_keys(site.keys / "worker-1"), 3600.0).connected(),
        contextlib.ExitStack() as stack,
    ):
        key = worker_keys(site.keys / "worker-0").key
        client = stack.enter_context(contextlib.closing(signed(site, key)))
        own = client.ActivateNode(
            ActivateNodeRequest(public_key=public_pem(key), heartbeat_interval=60)
        )
        site.wait_for(lambda: fleet.wait(1) or len(fleet.connected) == 2)
        message = fleet.send(1, TASK, Frame({}, {}).to_bytes())
        stolen = ConfirmMessageReceivedRequest(
            node=NodeProto(node_id=own.node_id), run_id=fleet._run, message_object_id=message
        )
        assert refused(client.ConfirmMessageReceived, stolen) == 403
        assert fleet._state.object_store.get(message)


def test_an_answer_larger_than_any_can_be_is_cut_off(
    site: Site, fleet: Fleet, stranger: httpx.Client
) -> None:
    with Node(site.address, worker_keys(site.keys / "worker-0"), 3600.0).connected():
        fleet.wait(60)
        fleet.send(0, TASK, Frame({}, {}).to_bytes())
        node = NodeProto(node_id=fleet._nodes[0])
        with signed(site, worker_keys(site.keys / "worker-0").key) as client:
            huge = PushObjectRequest(node=node, run_id=fleet._run, object_content=bytes(5 * 2**20))
            assert refused(client.PushObject, huge) == 413
            many = PushObjectRequest(node=node, run_id=fleet._run, object_content=bytes(2**19))
            client.PushObject(many)
            client.PushObject(many)
            assert refused(client.PushObject, many) == 413


def test_an_answer_may_be_larger_where_its_task_is_and_until_it_is_there(
    site: Site, fleet: Fleet
) -> None:
    with Node(site.address, worker_keys(site.keys / "worker-0"), 3600.0).connected():
        fleet.wait(60)
        fleet.send(0, TASK, Frame({"text": "x" * 2**20}, {}).to_bytes())
        node = NodeProto(node_id=fleet._nodes[0])
        part = PushObjectRequest(node=node, run_id=fleet._run, object_content=bytes(2**20))
        with signed(site, worker_keys(site.keys / "worker-0").key) as client:
            client.PushObject(part)
            # Such as that the run is over, while an answer is still being sent.
            fleet.send(0, END, Frame({}, {}).to_bytes())
            for _ in range(4):
                client.PushObject(part)
            assert refused(client.PushObject, part) == 413


class Behind:
    """What is behind the gate: it reads whatever it gets, and counts."""

    def __init__(self) -> None:
        self.read = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        more = True
        while more:
            message = await receive()
            self.read += len(message["body"])
            more = message["more_body"]


def through_the_gate(announced: list[tuple[bytes, bytes]], pieces: int) -> tuple[Behind, list[int]]:
    """Send pieces of 1 KiB with a known key, as if the parser had let all of them pass; gives what
    got through and the status of the answer."""
    behind, statuses = Behind(), []
    own, stamp = ec.generate_private_key(ec.SECP384R1()), now().isoformat()
    proof = {
        FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(public_pem(own)),
        FLEET_HTTP_SIGNATURE_HEADER: b64encode(sign_message(own, stamp.encode())),
        TIMESTAMP_HEADER: stamp.encode(),
    }
    headers = [*((name.lower().encode(), value) for name, value in proof.items()), *announced]
    scope = {"type": "http", "path": "/v1/fleet/push-object", "headers": headers}
    left = iter(range(pieces))
    keys = ServerKeys(Path(), Path(), (public_pem(own),))

    async def receive() -> Message:
        return {
            "type": "http.request",
            "body": bytes(2**10),
            "more_body": next(left, None) is not None,
        }

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    async def call() -> None:
        with ListeningSocket(socket.AF_INET, 1, lambda: None) as listening:
            gate = KeyFilter(behind, keys, RefusalLog(lambda _: None, time.monotonic), listening)
            await gate(scope, receive, send)

    asyncio.run(call())
    return behind, statuses


def test_a_request_in_chunks_does_not_get_past_the_gate() -> None:
    """There are parsers that then ignore the length which the gate has gone by."""
    chunked = (b"transfer-encoding", b"chunked")
    for announced in ([chunked], [(b"content-length", b"10"), chunked]):
        behind, statuses = through_the_gate(announced, pieces=64)
        assert (behind.read, statuses) == (0, [400])


def test_a_request_longer_than_it_has_said_ends_where_it_should_have() -> None:
    behind, statuses = through_the_gate([(b"content-length", b"4096")], pieces=64)
    assert (behind.read, statuses) == (0, [413])
    behind, statuses = through_the_gate([(b"content-length", b"4096")], pieces=3)
    assert (behind.read, statuses) == (4096, [])
    for nonsense in (b"-1", b"", b"ten"):
        behind, statuses = through_the_gate([(b"content-length", nonsense)], pieces=64)
        assert behind.read == 0
        assert statuses in ([400], [413])


def test_strangers_are_turned_away_before_their_bytes_are_read(stranger: httpx.Client) -> None:
    taken = 0

    def ten_gigabytes() -> Iterator[bytes]:
        nonlocal taken
        for _ in range(10 * 2**10):
            taken += 1
            yield bytes(2**20)

    headers = {**PROTOBUF, "content-length": str(10 * 2**30)}
    with contextlib.suppress(httpx.TransportError):  # It closes while bytes are still coming.
        reply = stranger.post("/v1/fleet/push-object", content=ten_gigabytes(), headers=headers)
        assert reply.status_code == 403
    assert taken < 100


def test_the_same_is_said_once_in_ten_minutes() -> None:
    said: list[TurnedAway] = []
    now = 0.0
    log = RefusalLog(said.append, lambda: now)
    for second in range(1201):
        now = float(second)
        log.note("Somebody was turned away.")
    assert said == [TurnedAway("Somebody was turned away.")] * 3


def test_a_thousand_strangers_fill_no_log() -> None:
    said: list[TurnedAway] = []
    log = RefusalLog(said.append, lambda: 0.0)
    for stranger in range(1000):
        log.note(f"Somebody at 192.0.2.{stranger} was turned away.")
    assert len(said) == 20
