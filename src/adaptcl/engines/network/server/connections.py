"""Connections to the server's port: how many may be open, and how they prove a worker's key.

A connection costs a file and some memory before anything is said on it, and a run needs files too.
So there is room for a limited number. A connection on which no worker proves its key within some
seconds is closed, and when room is short, the oldest without a key goes first. So strangers only
push out each other. A worker that is pushed out before it has proven its key tries again. Nor does
one worker push out another: each has a share of the room, and beyond it loses its oldest.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any

from fastapi import HTTPException
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
from flwr.supercore.constant import FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive

Address = tuple[str, int]  # the other end of a connection

KEY_WITHIN_S = 15.0  # how long a connection may be open before a worker has proven its key

IDLE_S = 75.0  # how long a connection may be open without a request

_HEAD_S = 15.0  # how long the head of a request may take beyond that: it has a few hundred bytes

_SPARE, _EACH = 64, 8
"""For strangers, and for each worker, which needs at most four at a time and may reconnect."""

_SCARCE = 0.75
_NO_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

PERIOD_S, _LEAST_BYTES = 60.0, 2**10
"""So many bytes of a body have to come in each period, until it ends. Over a slower link one piece
of an answer would take hours."""


async def read_body(announced: int, receive: Receive) -> bytes:
    """A request's body, no longer than announced and no slower than over any honest link.

    A link may carry only a few bytes a second, so a body as a whole may take any time. But whoever
    sends next to nothing only holds a place. HTTP's parser should see to the length, but parsers
    differ, and an attacker would look for one that does not.
    """
    body = bytearray()
    due, until = _LEAST_BYTES, time.monotonic() + PERIOD_S
    more = True
    while more:
        try:
            message = await asyncio.wait_for(receive(), until - time.monotonic())
        except TimeoutError:
            raise HTTPException(408, "The request is too slow.") from None
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > announced:
            raise HTTPException(413, "The request is longer than announced.")
        if len(body) >= due:
            due, until = len(body) + _LEAST_BYTES, time.monotonic() + PERIOD_S
    return bytes(body)


def already_read(body: bytes, receive: Receive) -> Receive:
    """Hand on a request whose body has been read."""
    whole: Message | None = {"type": "http.request", "body": body, "more_body": False}

    async def again() -> Message:
        nonlocal whole
        message, whole = whole, None
        return message or await receive()

    return again


def is_signed(headers: Mapping[bytes, bytes], key: bytes) -> bool:
    """Whether the sender of a request's head has the private key, and signed lately.

    Flower checks that too, but only after the whole body. Until then anybody who has seen a
    worker's public key could pass for it. Only the time is signed, so the head is enough.
    """
    try:
        stamp = headers[TIMESTAMP_HEADER.lower().encode()]
        signature = b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER.lower().encode()], validate=True)
        age = (now() - datetime.fromisoformat(stamp.decode("ascii"))).total_seconds()
        return -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE and (
            verify_signature(bytes_to_public_key(key), stamp, signature)
        )
    except (KeyError, ValueError, TypeError):
        return False


def room_for(workers: int) -> int:
    """How many connections to allow; lets this process open as many files as the system does."""
    wanted = _SPARE + _EACH * workers
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # some systems call a limit infinite that is not
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return wanted if soft == resource.RLIM_INFINITY else min(wanted, max(1, soft // 2))


class ListeningSocket(socket.socket):
    """A listening socket with room for a number of connections; used by one event loop."""

    def __init__(self, family: int, room: int, full: Callable[[], None]) -> None:
        """`full` is called whenever a connection has to be closed for lack of room."""
        # If the system chose the protocol, asyncio would not see that it is TCP, and would leave
        # on the delay that costs every small answer 40 ms.
        super().__init__(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._room = room
        self._full = full
        self._open: set[_Connection] = set()
        self._at: dict[Address, _Connection] = {}
        self._keyless: dict[_Connection, None] = {}  # in the order in which they came
        self._of: dict[bytes, list[_Connection]] = {}
        """Those of each key, in the order in which it was proven on them."""
        self._leaving: set[_Connection] = set()
        """Those that have been shut, until asyncio closes them."""
        self._rest_until = 0.0

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection; asyncio takes either error for "none is left"."""
        if time.monotonic() < self._rest_until:
            raise BlockingIOError
        try:
            plain, address = super().accept()
        except OSError as error:
            if error.errno in _NO_FILES:
                # asyncio now rests for a second, but only after some 2,000 tries.
                self._rest_until = time.monotonic() + 0.5
                self._room = max(1, int(_SCARCE * len(self._open)))
                self._make_room()
            raise
        if len(self._open) >= self._room:
            plain.close()
            self._make_room()
            raise ConnectionAbortedError
        self._make_room()
        connection = _Connection(plain, address[:2], self._forget)
        self._open.add(connection)
        self._at[connection.address] = connection
        self._keyless[connection] = None
        self._close_after(KEY_WITHIN_S, connection)
        return connection, address

    def key_of(self, address: Address) -> bytes | None:
        """The key that a worker has proven on a connection."""
        connection = self._at.get(address)
        return None if connection is None else connection.key

    @contextmanager
    def serving(self, address: Address, key: bytes) -> Iterator[None]:
        """Around a request of a worker that has proven its key on this connection."""
        connection = self._at.get(address)
        if connection is None or connection in self._leaving:
            yield
            return
        self._admit(connection, key)
        connection.requests += 1
        connection.stop_timer()
        try:
            yield
        finally:
            connection.requests -= 1
            stays = connection in self._open and connection not in self._leaving
            if stays and not connection.requests:
                self._close_after(IDLE_S + _HEAD_S, connection)

    def _admit(self, connection: _Connection, key: bytes) -> None:
        """Count a connection as one of a key; the key's oldest may have to go."""
        if connection.key is not None:
            return
        del self._keyless[connection]
        connection.key = key
        others = self._of.setdefault(key, [])
        others.append(connection)
        if len(others) > _EACH:
            self._shut_down(others[0])

    def _close_after(self, seconds: float, connection: _Connection) -> None:
        connection.timer = asyncio.get_running_loop().call_later(
            seconds, self._shut_down, connection
        )

    def _make_room(self) -> None:
        """Close the oldest connections without a key if there is little room."""
        while len(self._open) - len(self._leaving) >= _SCARCE * self._room:
            self._full()
            if not self._keyless:
                break
            self._shut_down(next(iter(self._keyless)))

    def _shut_down(self, connection: _Connection) -> None:
        """Shut a connection down; asyncio closes it when it finds that nothing more can come."""
        self._unlist(connection)
        self._leaving.add(connection)
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    def _forget(self, connection: _Connection) -> None:
        self._open.discard(connection)
        self._leaving.discard(connection)
        self._unlist(connection)
        if self._at.get(connection.address) is connection:
            del self._at[connection.address]

    def _unlist(self, connection: _Connection) -> None:
        self._keyless.pop(connection, None)
        others = self._of.get(connection.key or b"", [])
        if connection in others:
            others.remove(connection)


class _Connection(socket.socket):
    """A connection that tells when it is closed."""

    def __init__(
        self, plain: socket.socket, address: Address, closed: Callable[[_Connection], None]
    ) -> None:
        super().__init__(plain.family, plain.type, plain.proto, fileno=plain.detach())
        self.address = address
        self.key: bytes | None = None  # of the worker that has proven it
        self.requests = 0  # how many are being served
        self.timer: asyncio.TimerHandle | None = None
        self._tell_closed = closed

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()

    def close(self) -> None:
        self.stop_timer()
        super().close()
        self._tell_closed(self)
