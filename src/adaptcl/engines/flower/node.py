"""A worker's end of the network: Flower's fleet protocol, as its SuperNode speaks it.

A node asks for messages and answers them. It knows no call that fetches code.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar, cast

import httpx
from flwr.app import Message, Metadata
from flwr.app.message import make_message, remove_content_from_message
from flwr.common.constant import HEARTBEAT_PATIENCE
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.node_pb2 import Node as NodeProto
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
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
    inflate_object_from_contents,
    pull_objects,
    push_objects,
)
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from adaptcl.engines.flower.frames import from_record, to_record
from adaptcl.engines.flower.keys import WorkerKeys, public_pem
from adaptcl.errors import AdaptCLError

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
        """`silence` is how many seconds the server hears nothing before it gives the node up."""
        self._address = address
        self._keys = keys
        self._silence = silence
        self._client = FleetHttpClient.from_server_address(
            address,
            insecure=False,
            root_certificates=keys.authority,
            interceptors=[NodeAuthHttpInterceptor(keys.key, keys.key.public_key())],
        )
        self._node = NodeProto()

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Come, and leave whatever happens inside."""
        request = ActivateNodeRequest(
            public_key=public_pem(self._keys.key),
            heartbeat_interval=self._silence / HEARTBEAT_PATIENCE,
        )
        try:
            reply = self._call(self._client.ActivateNode, request)
            self._node = NodeProto(node_id=reply.node_id)
            stop = threading.Event()
            beating = threading.Thread(target=self._beat, args=(stop,), daemon=True)
            beating.start()
            try:
                yield
            finally:
                stop.set()
                with suppress(httpx.HTTPError):
                    self._client.DeactivateNode(DeactivateNodeRequest(node_id=reply.node_id))
        finally:
            self._client.close()

    def receive(self) -> Incoming | None:
        """The next message; None after a while without one."""
        reply = self._call(self._client.PullMessages, PullMessagesRequest(node=self._node))
        if not reply.messages_list:
            return None
        message = message_from_proto(reply.messages_list[0])
        return self._fetch(message.metadata, reply.message_object_trees[0])

    def answer(self, incoming: Incoming, content: bytes) -> None:
        """Send a frame back as the answer to a message."""
        asked = incoming.metadata
        metadata = Metadata(
            run_id=asked.run_id,
            message_id="",
            src_node_id=self._node.node_id,
            dst_node_id=asked.src_node_id,
            reply_to_message_id=asked.message_id,
            group_id=asked.group_id,
            created_at=time.time(),
            # A reply may not outlive its question by the server's clock, which may differ.
            ttl=asked.ttl / 2,
            message_type=asked.message_type,
        )
        message = make_message(metadata, to_record(content))
        with no_object_id_recompute():
            message.metadata.__dict__["_message_id"] = message.object_id
            request = PushMessagesRequest(
                node=self._node,
                messages_list=[message_to_proto(remove_content_from_message(message))],
                message_object_trees=[get_object_tree(message)],
            )
            reply = self._call(self._client.PushMessages, request)
            push = make_push_object_fn_protobuf(
                lambda each: self._call(self._client.PushObject, each),
                self._node,
                asked.run_id,
                reply.session_id,
            )
            wanted = set(reply.objects_to_push)
            try:
                push_objects(get_all_nested_objects(message), push, object_ids_to_push=wanted)
            except ObjectPushError as error:
                raise DisconnectedError(f"an answer was not taken: {error}") from None

    def _fetch(self, metadata: Metadata, tree: ObjectTree) -> Incoming:
        name = metadata.message_id
        run = metadata.run_id
        pull = make_pull_object_fn_protobuf(
            lambda each: self._call(self._client.PullObject, each), self._node, run
        )
        try:
            contents = pull_objects([p.object_id for p in iterate_object_tree(tree)], pull)
        except ObjectPullError as error:
            raise DisconnectedError(f"a message could not be fetched: {error}") from None
        make_confirm_message_received_fn_protobuf(
            lambda each: self._call(self._client.ConfirmMessageReceived, each), self._node, run
        )(name)
        message = cast(Message, inflate_object_from_contents(name, contents))
        return Incoming(metadata.message_type, from_record(message.content), metadata)

    def _beat(self, stop: threading.Event) -> None:
        request = SendNodeHeartbeatRequest(
            node=self._node, heartbeat_interval=self._silence / HEARTBEAT_PATIENCE
        )
        while not stop.wait(self._silence / 6):
            # Whether the server is gone is found out by whoever next wants something of it.
            with suppress(httpx.HTTPError, RuntimeError):
                self._client.SendNodeHeartbeat(request)

    def _call(self, call: Callable[..., Result], request: object) -> Result:
        """Make one call, and put what can go wrong into the two words that matter."""
        try:
            return call(request)
        except httpx.HTTPStatusError as error:
            raise self._refusal(error.response) from None
        except httpx.TransportError as error:
            text = str(error)
            if "certificate" in text.lower() or "ssl" in text.lower():
                raise AdaptCLError(
                    f"The server at {self._address} does not prove to be the one this worker's "
                    f"keys are for: {_short(text)}"
                ) from None
            raise DisconnectedError(_short(text)) from None

    def _refusal(self, response: httpx.Response) -> Exception:
        try:
            detail = str(response.json()["detail"])
        except (ValueError, KeyError, TypeError):
            detail = f"status {response.status_code}"
        if response.status_code == httpx.codes.UNAUTHORIZED:
            return DisconnectedError("it does not know this connection, or the two clocks differ")
        if response.status_code == httpx.codes.CONFLICT:
            return OccupiedError(detail)
        if response.status_code in (httpx.codes.FORBIDDEN, httpx.codes.NOT_FOUND):
            return AdaptCLError(f"The server at {self._address} refuses this worker: {detail}")
        return DisconnectedError(detail)


def _short(text: str) -> str:
    """An error of OpenSSL or the system without its file names and numbers."""
    return text.split(" (_ssl.c")[0].removeprefix("[SSL: CERTIFICATE_VERIFY_FAILED] ") or "no reply"
