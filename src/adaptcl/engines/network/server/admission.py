"""Which requests the server's port lets in.

Flower's fleet protocol checks that a request is signed by the key of the node it names. An open
network needs more: strangers are turned away before their bytes are read, only the calls that a
worker makes exist, nobody answers in another's name, and nobody sends more than an answer can be.
The port also tells the server what has happened, and holds a worker's request for work until there
is some, so that neither side ever polls.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue

from fastapi import HTTPException, Request
from fastapi.responses import JSONResponse, Response
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.server.superlink.linkstate import LinkState
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, NodeStatus
from starlette.middleware.base import RequestResponseEndpoint
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from adaptcl.engines.network.frames import parts_of
from adaptcl.engines.network.keys import ServerKeys
from adaptcl.engines.network.server.connections import (
    Address,
    ListeningSocket,
    already_read,
    is_signed,
    read_body,
)
from adaptcl.errors import UpdateError

_PREFIX = "/v1/fleet/"
_CALLS = frozenset(
    {
        "activate-node",
        "deactivate-node",
        "send-node-heartbeat",
        "pull-messages",
        "pull-object",
        "confirm-message-received",
        "push-messages",
        "push-object",
    }
)
"""Registering a key, or asking for an app or its run, is not among them."""

_HOLD_S = 20.0  # how long a request for work is held: less than the client waits for an answer

_REQUEST_BYTES = 2**22  # size limit of a request. Tensors travel in pieces of 1 MiB.

_REPEAT_S = 600.0  # how long the log does not repeat a sentence

_MOST_LINES = 20  # lines that the log may gain in that time


@dataclass(frozen=True)
class TurnedAway:
    """Somebody was not let in."""

    sentence: str


class RefusalLog:
    """Passes on who was turned away, but no flood of it."""

    def __init__(self, tell: Callable[[TurnedAway], None], clock: Callable[[], float]) -> None:
        self._tell = tell
        self._clock = clock
        self._last_told: dict[str, float] = {}

    def note(self, sentence: str) -> None:
        now = self._clock()
        self._last_told = {each: at for each, at in self._last_told.items() if now - at < _REPEAT_S}
        if sentence not in self._last_told and len(self._last_told) < _MOST_LINES:
            self._last_told[sentence] = now
            self._tell(TurnedAway(sentence))


@dataclass(frozen=True)
class Activated:
    """A worker has connected, or connected again."""

    node: int


@dataclass(frozen=True)
class Received:
    """A worker has received a message in full."""

    message: str


@dataclass(frozen=True)
class Pushed:
    """A worker has sent a part of an answer."""

    node: int


@dataclass
class _Awaited:
    """A message that a node has been sent and has not answered."""

    node: int
    received: float | None = None  # when the node had received it in full


class KeyFilter:
    """The outermost layer: looks at a request's head before any of its body."""

    def __init__(
        self, app: ASGIApp, keys: ServerKeys, log: RefusalLog, socket: ListeningSocket
    ) -> None:
        """`socket` learns on which connections there are workers."""
        self._app = app
        self._known = frozenset(keys.workers)
        self._surplus = {key: len(keys.workers) + n for n, key in enumerate(keys.surplus)}
        self._log = log
        self._socket = socket

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what a known worker may ask; refuse everything else at once."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers: Mapping[bytes, bytes] = dict(scope.get("headers", ()))
        refusal = self._refusal(scope, headers)
        if refusal is None:
            with self._socket.serving(_from(scope), _key(headers)):
                await self._pass_on(int(headers[b"content-length"]), scope, receive, send)
        elif scope["type"] == "http":
            await refusal(scope, receive, send)

    async def _pass_on(self, length: int, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await read_body(length, receive)
        except HTTPException as error:
            await _refuse(error.status_code, error.detail)(scope, receive, send)
        except ClientDisconnect:
            return
        else:
            await self._app(scope, already_read(body, receive), send)

    def _refusal(self, scope: Scope, headers: Mapping[bytes, bytes]) -> Response | None:
        path = scope.get("path", "")
        if scope["type"] != "http" or path.removeprefix(_PREFIX) not in _CALLS:
            return _refuse(404, "There is no such thing here.")
        if b"transfer-encoding" in headers:
            return _refuse(400, "A request must say how long it is, and not come in chunks.")
        try:
            shown = _key(headers)
            length = int(headers.get(b"content-length", b""))
        except ValueError:
            return _refuse(400, "The request is malformed.")
        if shown not in self._known:
            return self._turn_away(shown, _from(scope)[0])
        if length > _REQUEST_BYTES:
            return _refuse(413, "The request is too large.")
        # Once per connection is enough, since Flower checks every complete request.
        if self._socket.key_of(_from(scope)) != shown and not is_signed(headers, shown):
            return _refuse(401, "The request is not signed, or the two clocks differ.")
        return None

    def _turn_away(self, key: bytes, host: str) -> Response:
        if key not in self._surplus:
            self._log.note(f"A machine at {host} was turned away: its key is not known here.")
            return _refuse(403, "The server does not know this worker's key.")
        last = len(self._known) - 1
        taken = f"this run takes keys 0 to {last}" if last else "this run takes key 0 only"
        why = f"{taken}, and this is key {self._surplus[key]}"
        self._log.note(f"A worker at {host} was turned away: {why}.")
        return _refuse(403, f"{why}.")


def _from(scope: Scope) -> Address:
    host, port = scope.get("client") or ("nowhere", 0)
    return host, port


def _key(headers: Mapping[bytes, bytes]) -> bytes:
    return b64decode(headers.get(FLEET_HTTP_PUBLIC_KEY_HEADER.lower().encode(), b""), validate=True)


class CallFilter:
    """The innermost layer: looks at requests that Flower has read and authenticated."""

    def __init__(
        self, state: LinkState, clock: Callable[[], float], workers: Mapping[int, int]
    ) -> None:
        """`workers` are the numbers of the workers, by their nodes."""
        self._state = state
        self._workers = workers
        self._clock = clock
        self.log = RefusalLog(lambda somebody: self.events.put(somebody), clock)
        self._allowance: dict[int, int] = {}  # bytes that each node may still send
        self._has_work: dict[int, asyncio.Event] = {}
        self.events: SimpleQueue[Activated | Received | Pushed | TurnedAway] = SimpleQueue()
        self._awaited: dict[str, _Awaited] = {}
        self.goodbyes: set[int] = set()  # nodes that have left in an orderly way
        self.pushed: dict[int, float] = {}  # when a part of an answer last came from each node

    def expect(self, node: int, message: str, allowance: int) -> None:
        """A message goes to a node, which may now send this many bytes in answer."""
        self._awaited[message] = _Awaited(node)
        self._allowance[node] = allowance

    def forget(self, message: str) -> None:
        """The answer to a message is here, or nobody wants it any more."""
        self._awaited.pop(message, None)

    def received(self, message: str, otherwise: float) -> float:
        """When a worker had received a message in full, if it has said so."""
        awaited = self._awaited.get(message)
        return otherwise if awaited is None or awaited.received is None else awaited.received

    async def announce_work(self, node: int) -> None:
        self._work_of(node).set()

    async def __call__(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        """Let a worker's request through, or raise why not."""
        call = request.url.path.removeprefix(_PREFIX)
        asked = request.state.protobuf_request
        if call == "activate-node":
            node = self._free_node(asked.public_key, _from(request.scope)[0])
            self._end_old_request(node)
            self.goodbyes.discard(node)
        elif call == "deactivate-node" and asked.node_id in self._workers:
            self.goodbyes.add(asked.node_id)
        elif call == "pull-messages":
            return await self._pull(asked.node.node_id, request, call_next)
        elif call == "confirm-message-received":
            self._check_addressee(asked)
        elif call == "push-messages":
            self._check_author(asked)
            self._spend(asked.node.node_id, asked.ByteSize())
            self._check_shape(asked)
        elif call == "push-object":
            self._spend(asked.node.node_id, len(asked.object_content))
        response = await call_next(request)
        if response.status_code < 400:
            self._tell(call, request)
        return response

    def _tell(self, call: str, request: Request) -> None:
        asked = request.state.protobuf_request
        if call == "activate-node":
            node = self._state.get_node_id_by_public_key(asked.public_key)
            if node is not None:
                self.events.put(Activated(node))
        elif call == "confirm-message-received":
            awaited = self._awaited.get(asked.message_object_id)
            if awaited is not None:
                awaited.received = self._clock()
                self.events.put(Received(asked.message_object_id))
        elif call in ("push-messages", "push-object"):
            self._note_life(asked.node.node_id)
            self.pushed[asked.node.node_id] = self._clock()
            self.events.put(Pushed(asked.node.node_id))

    def _free_node(self, public_key: bytes, host: str) -> int:
        node = self._state.get_node_id_by_public_key(public_key)
        if node is None:
            raise HTTPException(403, "The server does not know this worker's key.")
        if self._state.get_node_info(node_ids=[node], statuses=[NodeStatus.ONLINE]):
            whose = f"with the key of worker {self._workers[node]}"
            self.log.note(
                f"A machine at {host} {whose} was turned away: another with the same key is "
                "connected."
            )
            raise HTTPException(409, "A worker with this key is connected already.")
        return node

    def _end_old_request(self, node: int) -> None:
        """Release a request for work of a connection that the node no longer has: it would take
        the next message and give it to nobody."""
        has_work = self._has_work.pop(node, None)
        if has_work is not None:
            has_work.set()

    def _check_author(self, asked: PushMessagesRequest) -> None:
        authors = [message.metadata.src_node_id for message in asked.messages_list]
        if authors != [asked.node.node_id]:
            raise HTTPException(403, "A worker answers for itself and once at a time.")

    def _check_shape(self, asked: PushMessagesRequest) -> None:
        """Check the announced parts of an answer before anything is made of them."""
        try:
            (tree,) = asked.message_object_trees
            name = parts_of(tree)[-1]
        except (UpdateError, ValueError):
            raise HTTPException(400, "The answer does not have the shape of one.") from None
        if name != asked.messages_list[0].metadata.message_id:
            raise HTTPException(400, "The answer's parts are those of another.")

    def _check_addressee(self, asked: ConfirmMessageReceivedRequest) -> None:
        """The message may have been withdrawn meanwhile, which is fine."""
        awaited = self._awaited.get(asked.message_object_id)
        if awaited is not None and awaited.node != asked.node.node_id:
            raise HTTPException(403, "The message is another worker's.")

    def _note_life(self, node: int) -> None:
        """A node that sends is alive, even if its heartbeats wait behind what it sends."""
        for each in self._state.get_node_info(node_ids=[node], statuses=[NodeStatus.ONLINE]):
            self._state.acknowledge_node_heartbeat(node, each.heartbeat_interval)

    def _spend(self, node: int, size: int) -> None:
        self._allowance[node] = self._allowance.get(node, 0) - size
        if self._allowance[node] < 0:
            raise HTTPException(413, "The answer is larger than any answer can be.")

    async def _pull(
        self, node: int, request: Request, call_next: RequestResponseEndpoint
    ) -> Response:
        has_work = self._work_of(node)
        with suppress(TimeoutError):
            await asyncio.wait_for(has_work.wait(), _HOLD_S)
        if self._has_work.get(node) is not has_work:
            raise HTTPException(410, "The worker has connected again.")
        has_work.clear()
        response = await call_next(request)
        result = getattr(request.state, "protobuf_response", None)
        if result is not None and result.messages_list:
            has_work.set()  # there may be more
        return response

    def _work_of(self, node: int) -> asyncio.Event:
        return self._has_work.setdefault(node, asyncio.Event())


def _refuse(status: int, detail: str) -> Response:
    """An answer after which the connection is closed."""
    return JSONResponse({"detail": detail}, status, headers={"connection": "close"})
