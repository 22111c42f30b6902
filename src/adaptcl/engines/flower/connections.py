"""How many connections the server's port holds open, and which of them it closes.

A connection costs a file and some memory before a word is said on it, and it is by files that a
run is written. So there is room for a number of them only; one on which no worker has shown a key
within some seconds is closed; and where room becomes scarce, the oldest without a key goes first.
Strangers, however many, push out each other, and never a worker that has shown its key; one that
is pushed out before it has tries again.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

Address = tuple[str, int]
"""Of the other end of a connection."""

KEY_WITHIN_S = 15.0
"""How long a connection may be open before a worker has shown its key."""

_SPARE, _EACH = 64, 8
"""For strangers and for each worker, which has at most four at a time and may come anew."""

_SCARCE = 0.75
_NO_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def room_for(workers: int) -> int:
    """How many connections to have at once; lets this process open as many files as it may."""
    wanted = _SPARE + _EACH * workers
    try:
        import resource
    except ImportError:  # Windows, which has no such limit.
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # Some systems call a limit infinite that is not.
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return wanted if soft == resource.RLIM_INFINITY else min(wanted, max(1, soft // 2))


class Entrance(socket.socket):
    """A listening socket with room for so many connections; used by one event loop."""

    def __init__(self, family: int, room: int, full: Callable[[], None]) -> None:
        """`full` is called whenever a connection has to be closed for want of room."""
        # With the protocol left to the system, asyncio would not see that it is TCP, and not
        # switch off the delay that costs every small answer 40 ms.
        super().__init__(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._room = room
        self._full = full
        self._open: set[_Connection] = set()
        self._keyless: dict[Address, _Connection] = {}
        """In the order in which they came."""
        self._leaving: set[_Connection] = set()
        """Those that have been shut, until asyncio closes them."""
        self._rest_until = 0.0

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection, for asyncio, which takes either error for "none is left"."""
        if time.monotonic() < self._rest_until:
            raise BlockingIOError
        try:
            plain, address = super().accept()
        except OSError as error:
            if error.errno in _NO_FILES:
                # asyncio rests for a second now, but only after it has tried some 2,000 times.
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
        self._keyless[connection.address] = connection
        connection.timer = asyncio.get_running_loop().call_later(
            KEY_WITHIN_S, self._turn_out, connection
        )
        return connection, address

    def key_shown(self, address: Address) -> None:
        """A worker has shown its key on a connection, which may stay now."""
        connection = self._keyless.pop(address, None)
        if connection is not None and connection.timer is not None:
            connection.timer.cancel()

    def _make_room(self) -> None:
        """Shut the oldest without a key where there is little left."""
        while len(self._open) - len(self._leaving) >= _SCARCE * self._room:
            self._full()
            if not self._keyless:
                break
            self._turn_out(next(iter(self._keyless.values())))

    def _turn_out(self, connection: _Connection) -> None:
        """Asyncio closes a connection itself when it finds that nothing more can come."""
        self._keyless.pop(connection.address, None)
        self._leaving.add(connection)
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    def _forget(self, connection: _Connection) -> None:
        self._open.discard(connection)
        self._leaving.discard(connection)
        if self._keyless.get(connection.address) is connection:
            del self._keyless[connection.address]


class _Connection(socket.socket):
    """One that tells when it is closed."""

    def __init__(
        self, plain: socket.socket, address: Address, closed: Callable[[_Connection], None]
    ) -> None:
        super().__init__(plain.family, plain.type, plain.proto, fileno=plain.detach())
        self.address = address
        self.timer: asyncio.TimerHandle | None = None
        self._tell_closed = closed

    def close(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        super().close()
        self._tell_closed(self)
