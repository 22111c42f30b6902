"""A worker's end of the network: Flower's fleet protocol, as its SuperNode speaks it.

A node asks for messages and answers them. It has no call that fetches code.

An answer travels in pieces. A piece arrives as a whole or not at all, and until then neither side
knows whether the other is still there. So over a slow link pieces are small, or one would take
longer than anybody waits, and few go at a time, or they would hold up the worker's heartbeats. Over
a fast link each piece costs some milliseconds whatever its size, so pieces are large. How fast a
link is shows when an answer is sent, so the first answer goes in small pieces.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

import httpx
from flwr.app import Metadata
from flwr.app.message import make_message, remove_content_from_message
from flwr.common.constant import HEARTBEAT_CALL_TIMEOUT, HEARTBEAT_PATIENCE
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ObjectTree, PushObjectRequest
from flwr.proto.node_pb2 import Node as NodeProto
from flwr.supercore.error import ApiErrorCode
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectPushError,
    ObjectUnavailableError,
)
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from adaptcl.engines.network.frames import frame_of, parts_of, printable, to_record
from adaptcl.engines.network.keys import WorkerKeys, public_pem, trusting
from adaptcl.errors import AdaptCLError, UpdateError

LEAST_BYTES, MOST_BYTES = 2**17, 2**20  # size of a piece

PIECE_S = 150.0
"""How long the pieces under way may take together. Flower forgets an answer if no piece of it comes
for 180 s."""

_AIM_S = 4.0
"""How long they should take: a fraction of the silence after which a worker counts as lost."""

_OTHER_AUTHORITY = ("issuer", "self-signed", "signature")
"""What OpenSSL says of a certificate from another authority, not of another name or date."""

_AT_ONCE = 2  # with two, the link is busy while one waits for its confirmation


@dataclass(frozen=True)
class Pieces:
    """How to cut an answer, and how many pieces to send at the same time."""

    size: int
    at_once: int


class Uplink:
    """Chunk size of a worker's upload, chosen from its measured bandwidth."""

    def __init__(self) -> None:
        self._rate = 0.0  # bytes per second

    def pieces(self) -> Pieces:
        room = int(_AIM_S * self._rate)
        at_once = _AT_ONCE if room >= _AT_ONCE * LEAST_BYTES else 1
        return Pieces(min(MOST_BYTES, max(LEAST_BYTES, room // at_once)), at_once)

    def learn(self, size: int, seconds: float) -> None:
        """Note how long an upload took; a small one would only show the delay."""
        if size >= LEAST_BYTES:
            self._rate = size / max(seconds, 1e-6)


_CALL_S = 30.0  # how long a call that fetches a message, or waits for one, may hear nothing

_FETCHED_AT_ONCE = 2
"""How many parts of a message to fetch at once. Unlike an upload, a slow download is heard as it
comes."""

MESSAGE_BYTES = 2**32  # size limit of a message: a model of a billion numbers

Item = TypeVar("Item")
Result = TypeVar("Result")


class DisconnectedError(Exception):
    """The server cannot be reached, or no longer knows this connection: connect again."""


class OccupiedError(DisconnectedError):
    """A worker with the same key is connected: another one, or this one before it was killed."""


@dataclass(frozen=True)
class Incoming:
    """A message from the server."""

    kind: str
    content: bytes
    metadata: Metadata


class Node:
    """One connection to the server, from coming to leaving."""

    def __init__(self, address: str, keys: WorkerKeys, silence: float) -> None:
        """`silence` is how many seconds without a heartbeat the server waits for the node."""
        self._address = address
        self._keys = keys
        self._silence = silence
        # Two clients: whatever interrupts a call, such as Ctrl-C, can leave its client broken, and
        # heartbeats and the goodbye must still be sent.
        self._messages = _client(address, keys, _CALL_S)
        self._presence = _client(address, keys, HEARTBEAT_CALL_TIMEOUT)
        self._node = NodeProto()
        self._uplink = Uplink()

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Connect, and leave whatever happens inside."""
        request = ActivateNodeRequest(
            public_key=public_pem(self._keys.key),
            heartbeat_interval=self._silence / HEARTBEAT_PATIENCE,
        )
        try:
            reply = self._call(self._messages.ActivateNode, request)
            self._node = NodeProto(node_id=reply.node_id)
            with self._present():
                yield
        finally:
            self._messages.close()
            self._presence.close()

    @contextmanager
    def _present(self) -> Iterator[None]:
        """Send heartbeats, and say goodbye in the end."""
        stop = threading.Event()
        beating = threading.Thread(target=self._beat, args=(stop,), daemon=True)
        beating.start()
        try:
            yield
        finally:
            stop.set()
            beating.join()  # a heartbeat after the goodbye would count as coming back
            with suppress(httpx.HTTPError, ValueError):
                self._presence.DeactivateNode(DeactivateNodeRequest(node_id=self._node.node_id))

    def receive(self) -> Incoming | None:
        """The next message; None after a while without one, or if the server has withdrawn it."""
        reply = self._call(self._messages.PullMessages, PullMessagesRequest(node=self._node))
        if not reply.messages_list:
            return None
        message = message_from_proto(reply.messages_list[0])
        return self._fetch(message.metadata, reply.message_object_trees[0])

    def answer(self, incoming: Incoming, content: bytes) -> None:
        asked = incoming.metadata
        metadata = Metadata(
            run_id=asked.run_id,
            message_id="",
            src_node_id=self._node.node_id,
            dst_node_id=asked.src_node_id,
            reply_to_message_id=asked.message_id,
            group_id=asked.group_id,
            created_at=time.time(),
            # By the server's clock, which may differ, a reply may not outlive its question.
            ttl=asked.ttl / 2,
            message_type=asked.message_type,
        )
        pieces = self._uplink.pieces()
        message = make_message(metadata, to_record(content, pieces.size))
        with no_object_id_recompute():
            message.metadata.__dict__["_message_id"] = message.object_id
            request = PushMessagesRequest(
                node=self._node,
                messages_list=[message_to_proto(remove_content_from_message(message))],
                message_object_trees=[get_object_tree(message)],
            )
            reply = self._call(self._messages.PushMessages, request)
            push = make_push_object_fn_protobuf(
                lambda each: self._call(self._messages.PushObject, each),
                self._node,
                asked.run_id,
                reply.session_id,
            )
            wanted = set(reply.objects_to_push)
            parts = get_all_nested_objects(message).items()
            contents = [(name, part.deflate()) for name, part in parts if name in wanted]
        began = time.perf_counter()
        try:
            _side_by_side(lambda part: push(*part), contents, pieces.at_once)
        except ObjectPushError as error:
            raise DisconnectedError(f"an answer was not taken: {error}") from None
        sent = sum(len(part) for _, part in contents)
        self._uplink.learn(sent, time.perf_counter() - began)

    def _fetch(self, metadata: Metadata, tree: ObjectTree) -> Incoming | None:
        name = metadata.message_id
        run = metadata.run_id
        pull = make_pull_object_fn_protobuf(
            lambda each: self._call(self._messages.PullObject, each), self._node, run
        )
        parts = parts_of(tree)
        limited = _Limited(pull, MESSAGE_BYTES)
        try:
            fetched = _side_by_side(limited, parts, _FETCHED_AT_ONCE)
        except (ObjectPullError, ObjectUnavailableError):
            return None  # the server no longer wants an answer, and sends something else
        make_confirm_message_received_fn_protobuf(
            lambda each: self._call(self._messages.ConfirmMessageReceived, each), self._node, run
        )(name)
        frame = frame_of(name, dict(zip(parts, fetched, strict=True)), MESSAGE_BYTES)
        return Incoming(metadata.message_type, frame, metadata)

    def _beat(self, stop: threading.Event) -> None:
        request = SendNodeHeartbeatRequest(
            node=self._node, heartbeat_interval=self._silence / HEARTBEAT_PATIENCE
        )
        while not stop.wait(self._silence / 6):
            # The next call that wants something finds out if the server is gone.
            with suppress(httpx.HTTPError, OSError, ValueError):
                self._presence.SendNodeHeartbeat(request)

    def _call(self, call: Callable[..., Result], request: object) -> Result:
        """Make one call; what goes wrong either ends the worker or makes it connect again."""
        try:
            return call(request)
        except httpx.HTTPStatusError as error:
            raise self._refusal(error.response) from None
        except httpx.RequestError as error:
            if _unproven(error):
                why = _short(str(error))
                if any(each in why for each in _OTHER_AUTHORITY):
                    why += "; server and worker need folders from the same `adaptcl keys`."
                raise AdaptCLError(
                    f"The server at {self._address} does not prove to be the one this worker's "
                    f"keys are for: {why}"
                ) from None
            raise DisconnectedError(_short(str(error))) from None
        except ValueError:
            raise DisconnectedError("its reply cannot be read") from None
        except httpx.InvalidURL:
            raise AdaptCLError(f"{self._address!r} is no address of the form HOST:PORT.") from None

    def _refusal(self, response: httpx.Response) -> Exception:
        try:
            said = response.json()
            detail = printable(str(said["detail"]))
        except (ValueError, KeyError, TypeError):
            said, detail = {}, f"status {response.status_code}"
        if response.status_code == httpx.codes.UNAUTHORIZED:
            return DisconnectedError("it does not know this connection, or the two clocks differ")
        if response.status_code == httpx.codes.CONFLICT:
            return OccupiedError(detail)
        if said.get("code") == ApiErrorCode.FLEET_RUN_STATUS_NOT_ALLOWED:
            return DisconnectedError("it has no run under way")  # it may have one later
        if response.status_code in (httpx.codes.FORBIDDEN, httpx.codes.NOT_FOUND):
            return AdaptCLError(f"The server at {self._address} refuses this worker: {detail}")
        return DisconnectedError(detail)


class _Limited:
    """Fetches parts of a message until they are more bytes than it may have."""

    def __init__(self, pull: Callable[[str], bytes], most: int) -> None:
        self._pull = pull
        self._left = most
        self._lock = threading.Lock()

    def __call__(self, part: str) -> bytes:
        content = self._pull(part)
        with self._lock:
            self._left -= len(content)
            if self._left < 0:
                raise UpdateError("The server sends a message that is larger than any can be.")
        return content


def _side_by_side(
    do: Callable[[Item], Result], items: Iterable[Item], at_once: int
) -> list[Result]:
    """Do something with each item, some at a time, and stop at the first failure.

    Unlike Flower's functions for this, it leaves no thread behind. A thread that still sends after
    its connection is closed would send on whatever was opened next under the same number.
    """
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(do, items))


def _client(address: str, keys: WorkerKeys, timeout: float) -> FleetHttpClient:
    signing = NodeAuthHttpInterceptor(keys.key, keys.key.public_key())
    return FleetHttpClient(
        f"https://{address}",
        interceptors=[signing, _Patient()],
        verify=trusting(keys.authority),
        timeout=timeout,
    )


class _Patient:
    """Gives uploads the time that they take over a slow link."""

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        if isinstance(context.message, PushMessagesRequest | PushObjectRequest):
            timeout = httpx.Timeout(PIECE_S, connect=_CALL_S)
            context.request.extensions["timeout"] = timeout.as_dict()
        return call_next(context)


def _unproven(error: httpx.RequestError) -> bool:
    """Whether TLS rejects the server's certificate. Whatever else fails in TLS may pass: a server
    that is killed at that moment, or a proxy that shows a page of its own for a while."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__context__
    return isinstance(cause, ssl.SSLCertVerificationError)


def _short(text: str) -> str:
    """An error of OpenSSL or the system, without its file names and numbers."""
    return text.split(" (_ssl.c")[0].removeprefix("[SSL: CERTIFICATE_VERIFY_FAILED] ") or "no reply"
