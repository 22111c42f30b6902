"""What the server's log says of those it has turned away: a line each, but no flood of them."""

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
    Entrance,
    already_read,
    is_signed,
    read_body,
)
from adaptcl.errors import UpdateError

_AGAIN_S = 600.0
"""How long the same is not said again."""

_LINES = 20
"""At most, in that time."""


@dataclass(frozen=True)
class TurnedAway:
    """Somebody was not let in."""

    sentence: str


class Log:
    """Passes on what is worth a line."""

    def __init__(self, tell: Callable[[TurnedAway], None], clock: Callable[[], float]) -> None:
        self._tell = tell
        self._clock = clock
        self._said: dict[str, float] = {}

    def note(self, sentence: str) -> None:
        """Somebody was turned away; called for every single time."""
        now = self._clock()
        self._said = {each: at for each, at in self._said.items() if now - at < _AGAIN_S}
        if sentence not in self._said and len(self._said) < _LINES:
            self._said[sentence] = now
            self._tell(TurnedAway(sentence))


# What the server's port lets in.
#
# Flower's fleet protocol checks that a request is signed by the key of the node it names. This
# adds what an open network needs beyond that: strangers are turned away before their bytes are
# read, only the calls a worker makes exist, nobody answers in another's name, and nobody sends
# more than an answer can be. It also tells the server when something has happened, and holds a
# worker's question for work until there is some, so that neither side ever has to ask in vain.

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
"""Not among them: registering keys, asking for an app or its run."""

_HOLD_S = 20.0
"""How long a question for work is held; less than the client waits for an answer."""

_REQUEST_BYTES = 2**22
"""No single request of an honest worker is larger: tensors travel in pieces of 1 MiB."""


@dataclass(frozen=True)
class Activated:
    """A worker has connected, for the first time or anew."""

    node: int


@dataclass(frozen=True)
class Pushed:
    """A worker has sent a part of an answer."""

    node: int


@dataclass
class _Awaited:
    """A message that a node has been sent and has not answered."""

    node: int
    received: float | None = None
    """When the node had received it in full."""


class Gate:
    """The outermost layer, which sees a request's head before any of its body."""

    def __init__(self, app: ASGIApp, keys: ServerKeys, log: Log, entrance: Entrance) -> None:
        """`entrance` is told on which connections there are workers."""
        self._app = app
        self._known = frozenset(keys.workers)
        self._surplus = {key: len(keys.workers) + n for n, key in enumerate(keys.surplus)}
        self._log = log
        self._entrance = entrance

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what a known worker may ask; answer everything else at once."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers: Mapping[bytes, bytes] = dict(scope.get("headers", ()))
        refusal = self._refusal(scope, headers)
        if refusal is None:
            with self._entrance.asked(_from(scope), _key(headers)):
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
        # Once on a connection is enough here, since Flower checks every request when it is whole.
        if self._entrance.key_of(_from(scope)) != shown and not is_signed(headers, shown):
            return _refuse(401, "The request is not signed, or the two clocks differ.")
        return None

    def _turn_away(self, key: bytes, host: str) -> Response:
        if key not in self._surplus:
            self._log.note(f"Somebody at {host} was turned away, whose key is not known here.")
            return _refuse(403, "The server does not know this worker's key.")
        last = len(self._known) - 1
        taken = f"this run takes keys 0 to {last}" if last else "this run takes key 0 only"
        why = f"{taken}, and this is key {self._surplus[key]}"
        self._log.note(f"A worker at {host} was turned away: {why}.")
        return _refuse(403, f"{why}.")


def _from(scope: Scope) -> Address:
    """Where a request comes from."""
    host, port = scope.get("client") or ("nowhere", 0)
    return host, port


def _key(headers: Mapping[bytes, bytes]) -> bytes:
    """The public key that a request shows."""
    return b64decode(headers.get(FLEET_HTTP_PUBLIC_KEY_HEADER.lower().encode(), b""), validate=True)


class Doorkeeper:
    """The innermost layer, which sees requests that Flower has read and authenticated."""

    def __init__(self, state: LinkState, clock: Callable[[], float]) -> None:
        self._state = state
        self._clock = clock
        self.log = Log(self._tell_of, clock)
        self._left: dict[int, int] = {}
        self._bells: dict[int, asyncio.Event] = {}
        self.events: SimpleQueue[Activated | Pushed | TurnedAway] = SimpleQueue()
        self._awaited: dict[str, _Awaited] = {}
        self.pushed: dict[int, float] = {}
        """When a part of an answer last came from each node."""

    def expect(self, node: int, message: str, allowance: int) -> None:
        """A message was sent to a node, which may now send this many bytes in answer."""
        self._awaited[message] = _Awaited(node)
        self._left[node] = allowance

    def forget(self, message: str) -> None:
        """The answer to a message is here, or wanted no more."""
        self._awaited.pop(message, None)

    def received(self, message: str, otherwise: float) -> float:
        """When a message had been received in full by its worker, if the worker has said so."""
        awaited = self._awaited.get(message)
        return otherwise if awaited is None or awaited.received is None else awaited.received

    async def ring(self, node: int) -> None:
        """There is work for a node."""
        self._bell(node).set()

    async def __call__(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        """Let one request of a worker through, or raise why not."""
        call = request.url.path.removeprefix(_PREFIX)
        asked = request.state.protobuf_request
        if call == "activate-node":
            self._make_way(self._free_node(asked.public_key, _from(request.scope)[0]))
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
        elif call in ("push-messages", "push-object"):
            self._sign_of_life(asked.node.node_id)
            self.pushed[asked.node.node_id] = self._clock()
            self.events.put(Pushed(asked.node.node_id))

    def _tell_of(self, somebody: TurnedAway) -> None:
        self.events.put(somebody)

    def _free_node(self, public_key: bytes, host: str) -> int:
        node = self._state.get_node_id_by_public_key(public_key)
        if node is None:
            raise HTTPException(403, "The server does not know this worker's key.")
        if self._state.get_node_info(node_ids=[node], statuses=[NodeStatus.ONLINE]):
            self.log.note(
                f"A worker at {host} was turned away: another with the same key is connected."
            )
            raise HTTPException(409, "A worker with this key is connected already.")
        return node

    def _make_way(self, node: int) -> None:
        """Let go of a question that is still held for a connection this node no longer has: it
        would take the next message and give it to nobody."""
        bell = self._bells.pop(node, None)
        if bell is not None:
            bell.set()

    def _check_author(self, asked: PushMessagesRequest) -> None:
        authors = [message.metadata.src_node_id for message in asked.messages_list]
        if authors != [asked.node.node_id]:
            raise HTTPException(403, "A worker answers for itself and once at a time.")

    def _check_shape(self, asked: PushMessagesRequest) -> None:
        """Before anything is made of what the answer is said to consist of."""
        try:
            (tree,) = asked.message_object_trees
            name = parts_of(tree)[-1]
        except (UpdateError, ValueError):
            raise HTTPException(400, "The answer does not have the shape of one.") from None
        if name != asked.messages_list[0].metadata.message_id:
            raise HTTPException(400, "The answer's parts are those of another.")

    def _check_addressee(self, asked: ConfirmMessageReceivedRequest) -> None:
        """A message may have been withdrawn meanwhile; then nobody minds."""
        awaited = self._awaited.get(asked.message_object_id)
        if awaited is not None and awaited.node != asked.node.node_id:
            raise HTTPException(403, "The message is another worker's.")

    def _sign_of_life(self, node: int) -> None:
        """Who sends is there, also where its heartbeats wait behind what it sends."""
        for each in self._state.get_node_info(node_ids=[node], statuses=[NodeStatus.ONLINE]):
            self._state.acknowledge_node_heartbeat(node, each.heartbeat_interval)

    def _spend(self, node: int, size: int) -> None:
        self._left[node] = self._left.get(node, 0) - size
        if self._left[node] < 0:
            raise HTTPException(413, "The answer is larger than any answer can be.")

    async def _pull(
        self, node: int, request: Request, call_next: RequestResponseEndpoint
    ) -> Response:
        bell = self._bell(node)
        with suppress(TimeoutError):
            await asyncio.wait_for(bell.wait(), _HOLD_S)
        if self._bells.get(node) is not bell:
            raise HTTPException(410, "The worker has connected anew.")
        bell.clear()
        response = await call_next(request)
        result = getattr(request.state, "protobuf_response", None)
        if result is not None and result.messages_list:
            bell.set()  # There may be more.
        return response

    def _bell(self, node: int) -> asyncio.Event:
        return self._bells.setdefault(node, asyncio.Event())


def _refuse(status: int, detail: str) -> Response:
    """An answer after which the connection is closed, whatever else was to come over it."""
    return JSONResponse({"detail": detail}, status, headers={"connection": "close"})
