"""The server's end of the network: one port, and messages to and from workers.

This process serves Flower's link state and fleet protocol, and nothing else of a SuperLink.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty

from flwr.app import Message, Metadata
from flwr.app.message import make_message, remove_content_from_message
from flwr.common.constant import (
    HEARTBEAT_PATIENCE,
    NOOP_ACCOUNT_NAME,
    NOOP_FLWR_AID,
    SUPERLINK_NODE_ID,
)
from flwr.proto.node_pb2 import NodeInfo
from flwr.server.superlink.linkstate import LinkState, LinkStateFactory
from flwr.supercore.constant import (
    FLWR_IN_MEMORY_DB_NAME,
    NOOP_FEDERATION_ID,
    NodeStatus,
    TaskType,
)
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.superlink.federation import NoOpFederationManager

from adaptcl.engines.network.frames import frame_of, to_record
from adaptcl.engines.network.keys import ServerKeys
from adaptcl.engines.network.server.admission import Activated, CallFilter, Received, TurnedAway
from adaptcl.engines.network.server.link_state import MessageParts, RunLinkState
from adaptcl.engines.network.server.port import Port
from adaptcl.engines.network.worker.node import MOST_BYTES
from adaptcl.errors import AdaptCLError, UpdateError
from adaptcl.interrupts import raise_if_interrupted

_TTL_S = 30 * 86400.0
"""Flower forgets a message after this long; the server's patience ends much earlier."""

_SPARE_BYTES = 2**20
"""How many bytes an answer may have beyond twice those of its message, or of the sub-model if that
is larger. A trained sub-model is no larger than the one that was sent, but a codec may add to each
number the place where it belongs."""

_SILENT = 1 / 3
"""Of the silence after which a worker is gone: two of the heartbeats that a worker sends in it."""

_TICK_S = 1.0  # how often to look whether a worker has gone silent


@dataclass(frozen=True)
class Came:
    """A worker has connected. If it was here before, what it was working on is gone."""

    worker: int


@dataclass(frozen=True)
class Left:
    """A worker has said goodbye, or has not been heard of for a while."""

    worker: int
    said_goodbye: bool = False


@dataclass(frozen=True)
class Silent:
    """A worker has missed two heartbeats. It counts as gone after `limit` seconds of silence."""

    worker: int
    seconds: float
    limit: float


@dataclass(frozen=True)
class Progressed:
    """A worker has received a message in full, or begins to answer it."""

    worker: int
    message: str
    phase: str  # `training` or `receiving`


@dataclass(frozen=True)
class Replied:
    """A worker's answer to a message is complete. Times are of the fleet's clock."""

    worker: int
    message: str
    content: bytes  # empty if it could not be put together
    received: float  # when the worker had received the message in full
    arrived: float


FleetEvent = Came | Left | Silent | Progressed | Replied | TurnedAway


@dataclass(frozen=True)
class _Sent:
    """A message that was sent to a node, and how many bytes the answer to it may have."""

    node: int
    allowance: int


class Fleet:
    """A port that workers connect to; a context manager that closes it."""

    def __init__(
        self, keys: ServerKeys, host: str, port: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.now = clock  # the clock of all times and timeouts, in seconds
        logging.getLogger("flwr").setLevel(logging.CRITICAL)
        self._objects = MessageParts()
        self._state = RunLinkState(manager := NoOpFederationManager(), self._objects)
        self._nodes = [
            self._state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, key, 0)
            for key in keys.workers
        ]
        self._workers = {node: worker for worker, node in enumerate(self._nodes)}
        self._run = _new_run(self._state)
        self._online: dict[int, str] = {}  # connected nodes, and since when
        self._silent: set[int] = set()  # connected nodes that have missed heartbeats
        self._sent: dict[str, _Sent] = {}  # messages without an answer
        self._partial: dict[str, Message] = {}  # answers that are announced but not complete
        self._calls = CallFilter(self._state, clock, self._workers)
        self._ticked = -math.inf
        self._port = Port(host, port, keys, _serving(self._state, manager), self._calls)

    def __enter__(self) -> Fleet:
        self._port.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._port.stop()

    @property
    def address(self) -> tuple[str, int]:
        return self._port.address

    @property
    def connected(self) -> set[int]:
        """The workers that are connected, whether or not they take part."""
        return {self._workers[node] for node in self._online}

    def send(self, worker: int, kind: str, content: bytes, answer: int = 0) -> str:
        """Send a frame to a worker; gives the message's name.

        `answer` is how many bytes the tensors of its answer may have, which can be more than those
        of a message that a codec has made small.
        """
        node = self._nodes[worker]
        metadata = Metadata(
            run_id=self._run,
            message_id="",
            src_node_id=SUPERLINK_NODE_ID,
            dst_node_id=node,
            reply_to_message_id="",
            group_id="",
            created_at=time.time(),
            ttl=_TTL_S,
            message_type=kind,
        )
        message = make_message(metadata, to_record(content, MOST_BYTES))
        with no_object_id_recompute():
            name = message.object_id
            message.metadata.__dict__["_message_id"] = name
            session = self._state.start_session(self._run)
            missing = self._state.preregister_object_tree(get_object_tree(message), session)
            for each, inside in get_all_nested_objects(message).items():
                if each in missing:
                    self._state.store_object(self._run, session, each, inside.deflate())
            # The answer to an earlier message may still be on its way.
            self._sent[name] = _Sent(node, 2 * max(len(content), answer) + _SPARE_BYTES)
            awaited = [each.allowance for each in self._sent.values() if each.node == node]
            self._calls.expect(node, name, sum(awaited))
            # Last: a worker that finds a message without its parts waits for a second.
            if self._state.store_message_ins(remove_content_from_message(message)) is None:
                raise AdaptCLError(f"A message for worker {worker} was not taken by Flower.")
        self._port.call(self._calls.announce_work(node))
        return name

    def forget(self, message: str) -> None:
        """Nobody wants the answer to a message any more."""
        if self._sent.pop(message, None) is not None:
            self._partial.pop(message, None)
            self._calls.forget(message)
            self._state.forget(message)

    def wait(self, timeout: float) -> list[FleetEvent]:
        """What happens next, as soon as it does; an empty list after `timeout` seconds."""
        until = self.now() + timeout
        while True:
            raise_if_interrupted()
            self._port.check()
            happened = self._look()
            if happened:
                return happened
            left = until - self.now()
            if left <= 0:
                return []
            try:
                event = self._calls.events.get(timeout=min(left, _TICK_S))
            except Empty:
                continue
            match event:
                case Activated():
                    self._ticked = -math.inf
                case TurnedAway():
                    return [event]
                # The worker no longer trains if its answer has begun to come.
                case Received(name) if name in self._sent and name not in self._partial:
                    return [self._progressed(name, "training")]

    def _look(self) -> list[FleetEvent]:
        if self.now() - self._ticked < _TICK_S:
            return self._answers()
        self._ticked = self.now()
        # A worker may answer and leave at once: then it has answered.
        happened = self._changes_of_presence() + self._answers()
        for message in [m for m, each in self._sent.items() if each.node not in self._online]:
            self.forget(message)
        self._state.forget_senders()
        return happened

    def _changes_of_presence(self) -> list[FleetEvent]:
        """Who has left and who has come; a worker that was away only for a moment has done both."""
        before = self._online
        infos = self._state.get_node_info(statuses=[NodeStatus.ONLINE])
        self._online = {info.node_id: info.last_activated_at for info in infos}
        gone = before.keys() - self._online.keys()
        new = [node for node, since in self._online.items() if before.get(node) != since]
        for message in [m for m, each in self._sent.items() if each.node in new]:
            self.forget(message)
        return [
            *(Left(self._workers[node], node in self._calls.goodbyes) for node in gone),
            *(Came(self._workers[node]) for node in new),
            *self._newly_silent(infos),
        ]

    def _newly_silent(self, infos: Sequence[NodeInfo]) -> list[FleetEvent]:
        before, self._silent, found = self._silent, set[int](), list[FleetEvent]()
        for info in infos:
            limit = HEARTBEAT_PATIENCE * info.heartbeat_interval
            seconds = limit - (info.online_until - time.time())
            if seconds > _SILENT * limit:
                self._silent.add(info.node_id)
                if info.node_id not in before:
                    found.append(Silent(self._workers[info.node_id], seconds, limit))
        return found

    def _answers(self) -> list[FleetEvent]:
        announced = {
            reply.metadata.reply_to_message_id: reply
            for reply in self._state.answers_to(self._sent.keys() - self._partial.keys())
        }
        self._partial |= announced
        complete = [
            answer
            for message in list(self._partial)
            if (answer := self._complete(message)) is not None
        ]
        begun = announced.keys() & self._partial.keys()
        return [*(self._progressed(each, "receiving") for each in begun), *complete]

    def _progressed(self, message: str, phase: str) -> Progressed:
        return Progressed(self._workers[self._sent[message].node], message, phase)

    def _complete(self, message: str) -> Replied | None:
        """The answer to a message, once all its parts are here."""
        reply = self._partial[message].metadata
        parts = self._objects.whole(reply.message_id)
        if parts is None:
            return None
        try:
            frame = frame_of(reply.message_id, parts, self._sent[message].allowance)
        except UpdateError:
            frame = b""  # somebody made it by hand; whoever reads it will refuse it
        now = self.now()
        answer = Replied(
            worker=self._workers[reply.src_node_id],
            message=message,
            content=frame,
            received=self._calls.received(message, now),
            arrived=self._calls.pushed.get(reply.src_node_id, now),
        )
        self.forget(message)
        return answer


def _serving(state: RunLinkState, manager: NoOpFederationManager) -> LinkStateFactory:
    """What hands this state to Flower's request handlers."""
    kept = ObjectStoreFactory(FLWR_IN_MEMORY_DB_NAME)
    states = LinkStateFactory(FLWR_IN_MEMORY_DB_NAME, manager, kept)
    states.state_instance = state
    return states


def _new_run(state: LinkState) -> int:
    """Start a run in Flower's sense; gives its number."""
    run = state.create_run(
        None, None, None, {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP
    )
    task = state.get_run_info(run_ids=[run])[0].primary_task_id
    if task is None or state.claim_task(task) is None or not state.activate_task(task):
        raise AdaptCLError("Flower would not start a run; is this the version of it we need?")
    return run
