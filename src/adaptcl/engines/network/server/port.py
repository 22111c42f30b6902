"""What the server's process knows of its nodes and their messages: Flower's link state.

Flower's is made for a server that others talk to, and that may run anything for anybody. Here one
process asks it questions about the one run that it is there for.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from typing import Any

import uvicorn
from fastapi import FastAPI
from flwr.app import Message
from flwr.proto.message_pb2 import ObjectTree
from flwr.server.superlink.linkstate import InMemoryLinkState, LinkStateFactory
from flwr.supercore.date import now
from flwr.supercore.error import http_error_translator
from flwr.supercore.object_store import NoObjectInStoreError
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore, ObjectEntry
from flwr.supercore.protobuf.translation import ProtobufTranslationMiddleware
from flwr.superlink.routers.fleet.node_auth import NodeAuthMiddleware
from flwr.superlink.routers.fleet.router import router as fleet_router
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware

from adaptcl.engines.network.frames import parts_of, tree_of
from adaptcl.engines.network.keys import ServerKeys
from adaptcl.engines.network.server.admission import Doorkeeper, Gate
from adaptcl.engines.network.server.connections import IDLE_S, Entrance, room_for
from adaptcl.errors import AdaptCLError, SettingError, UpdateError


class Link(InMemoryLinkState):
    """Flower's link state, for one run."""

    def _cleanup_expired_task_tokens_locked(self) -> None:
        """End no run of which nothing has been heard for a minute.

        Flower would, to notice that the process behind a run is gone. That process is this one,
        and after a pause, or where the clock is set, it would find its run ended and all workers
        refused.
        """

    def answers_to(self, messages: Iterable[str]) -> list[Message]:
        """The answers to these messages that have been announced.

        Where Flower is asked for answers of a node that has gone, it makes one up and stores it,
        each time.
        """
        with self.lock:
            names = [self.message_ins_id_to_message_res_id.get(each) for each in messages]
            return [self.message_res_store[name] for name in names if name is not None]

    def store_message_and_object_tree(
        self, message: Message, object_tree: ObjectTree, session_id: str
    ) -> tuple[bool, list[str]]:
        """Take note of an answer that a worker announces; gives whether it is wanted, and which
        of its parts are."""
        try:
            stored, missing = super().store_message_and_object_tree(
                message, object_tree, session_id
            )
        except UpdateError:
            stored, missing = False, []  # It was announced before, with other parts.
        if not missing:
            # Flower would keep the session until the last part comes.
            self._cleanup_push_session(session_id, cleanup_messages=False)
        return stored, missing

    def forget(self, message: str) -> None:
        """Delete a message and whatever has come in answer to it.

        A worker that is still sending is not told, so its session stays until it has done so.
        """
        with self.lock:
            answer = self.message_ins_id_to_message_res_id.get(message)
            self.delete_messages({message})
            for each in (message, answer):
                if each is not None:
                    self.object_store.delete(each)

    def forget_senders(self) -> None:
        """Give up the sessions of those who stopped in the middle of sending.

        Flower would do so when somebody asks for what they have not sent, and nobody does.
        """
        with self._lock_object_push_sessions:
            current = now()
            for session, each in list(self._object_push_sessions.items()):
                if each.expires_at <= current:
                    self._cleanup_push_session(session, cleanup_messages=False)


# The server's store of the parts of messages, its own and its workers'.
#
# Flower's own keeps of each part what is inside of it, as whoever was the first to name the part
# has said. Parts inside of each other many times over would have it spell out more than any
# memory holds, and parts that others have described wrongly would never be deleted. This one
# keeps of each message which parts it has, and a part for as long as a message has it.


class Objects(InMemoryObjectStore):
    """Flower's store of objects, for messages that share some and come and go at any moment.

    Equal objects of different messages, such as the answers of all workers to their invitations,
    are stored once.
    """

    def __init__(self) -> None:
        super().__init__()
        self._messages: dict[str, list[str]] = {}
        """The parts of each message."""

    def preregister(self, run_id: int, object_tree: ObjectTree) -> list[str]:
        """Lay claim to the parts of a message, all or none; gives those that are missing."""
        parts = parts_of(object_tree)
        with self.lock_store:
            if self._messages.setdefault(object_tree.object_id, parts) is parts:
                for part in parts:
                    entry = self.store.setdefault(part, ObjectEntry(b"", False, [], 0, {run_id}))
                    entry.ref_count += 1
            elif self._messages[object_tree.object_id] != parts:
                raise UpdateError("A message has been announced with other parts before.")
            return [part for part in parts if not self.store[part].is_available]

    def put(self, object_id: str, object_content: bytes) -> None:
        """Store an object, unless no message needs it any more.

        When an answer's last missing part comes from another worker, the answer is read and
        deleted while its own worker still sends. That worker has done nothing wrong.
        """
        with suppress(NoObjectInStoreError):
            super().put(object_id, object_content)

    def get_object_tree(self, object_id: str) -> ObjectTree:
        """The parts of a message, as they were announced."""
        with self.lock_store:
            if object_id not in self._messages:
                raise NoObjectInStoreError(f"There is no message {object_id}.")
            return tree_of(self._messages[object_id])

    def whole(self, message: str) -> dict[str, bytes] | None:
        """All parts of a message; None as long as one is missing."""
        with self.lock_store:
            if not self.get(message):
                return None  # It is sent last, so there is no need to look through all the others.
            contents = {part: self.store[part].content for part in self._messages.get(message, ())}
            return contents if contents and all(contents.values()) else None

    def delete(self, object_id: str) -> None:
        """Delete a message, and those of its parts that no other message has."""
        with self.lock_store:
            for part in self._messages.pop(object_id, ()):
                self.store[part].ref_count -= 1
                if not self.store[part].ref_count:
                    del self.store[part]

    def delete_objects_in_run(self, run_id: int) -> None:
        """Delete everything, because there is only one run."""
        self.clear()

    def clear(self) -> None:
        """Delete everything."""
        with self.lock_store:
            self._messages.clear()
            super().clear()


# The server's port: Flower's fleet protocol over HTTPS, served in a thread of this process.


class Port(threading.Thread):
    """The web server, in a thread with an event loop of its own."""

    def __init__(
        self,
        host: str,
        port: int,
        keys: ServerKeys,
        states: LinkStateFactory,
        doorkeeper: Doorkeeper,
    ) -> None:
        super().__init__(name="fleet", daemon=True)
        self._log = doorkeeper.log
        self._socket = self._bind(host, port, room_for(len(keys.workers)))
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        self._uvicorn = uvicorn.Server(
            uvicorn.Config(
                _app(states, doorkeeper, keys, self._socket),
                ssl_certfile=keys.certificate,
                ssl_keyfile=keys.key,
                log_config=None,
                access_log=False,
                lifespan="off",
                ws="none",
                proxy_headers=False,  # They would say where a request comes from.
                timeout_keep_alive=int(IDLE_S),
                timeout_graceful_shutdown=1,
                server_header=False,
            )
        )
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(_without_scarcity)
        self._error: BaseException | None = None

    def start(self) -> None:
        """Serve, and come back when the port answers."""
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
        super().start()
        while not self._uvicorn.started:
            self.check()
            time.sleep(0.01)

    def run(self) -> None:
        """What the thread does."""
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._uvicorn.serve([self._socket]))
        except BaseException as error:
            self._error = error
        finally:
            self._end_handshakes()
            self._loop.close()

    def _end_handshakes(self) -> None:
        """Of connections that never came to anything."""
        for task in (left := asyncio.all_tasks(self._loop)):
            task.cancel()
        if left:
            self._loop.run_until_complete(asyncio.wait(left, timeout=1))

    def call(self, coroutine: Coroutine[None, None, None]) -> None:
        """Have a coroutine run in the server's loop, soon."""
        asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def check(self) -> None:
        """Raise what ended the server, if anything did."""
        if self._error is not None or (self.ident is not None and not self.is_alive()):
            raise AdaptCLError(f"The server's port has closed: {self._error}.")

    def stop(self) -> None:
        """Close the port and all connections."""
        self._uvicorn.should_exit = True
        self.join(timeout=5)
        self._socket.close()

    def _bind(self, host: str, port: int, room: int) -> Entrance:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = Entrance(family, room, self._tell_full)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, port))
            listening.listen(128)
        except OSError as error:
            listening.close()
            raise SettingError(
                f"The server cannot listen at {host}:{port} ({error.strerror}); choose another "
                "address with --listen."
            ) from None
        return listening

    def _tell_full(self) -> None:
        self._log.note("So many connections are open that those without a key are being closed.")


def _without_scarcity(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What asyncio tells of a connection for which there was no file is in the log already."""
    if "out of system resource" not in context["message"]:
        loop.default_exception_handler(context)


def _app(
    states: LinkStateFactory, doorkeeper: Doorkeeper, keys: ServerKeys, entrance: Entrance
) -> FastAPI:
    app = FastAPI(
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        middleware=[
            Middleware(Gate, keys=keys, log=doorkeeper.log, entrance=entrance),
            Middleware(BaseHTTPMiddleware, dispatch=http_error_translator),
            Middleware(ProtobufTranslationMiddleware),
            Middleware(NodeAuthMiddleware),
            Middleware(BaseHTTPMiddleware, dispatch=doorkeeper),
        ],
    )
    app.state.linkstate_factory = states
    app.state.enable_supernode_auth = True
    app.include_router(fleet_router)
    return app
