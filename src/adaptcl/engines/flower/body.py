"""Reading a request's body: no more than was announced, and no slower than over any honest link.

A worker may be behind a line that carries few bytes a second, so nobody can say how long a body
may take as a whole. But over any line something gets on, and who sends next to nothing for long
only holds a place.
"""

from __future__ import annotations

import asyncio
import time

from fastapi import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive

PERIOD_S = 60.0
"""Within each such time so many bytes of a body have to come, unless it ends."""

_LEAST_BYTES = 2**10
"""Over a link for which this is too much, one piece of an answer would take hours."""


async def read_body(announced: int, receive: Receive) -> bytes:
    """A request's body, if it comes and is no longer than its head has said.

    Whoever parses HTTP should have seen to its length, but parsers differ, and there is much to
    gain by finding one that does not.
    """
    body = bytearray()
    due, until = _LEAST_BYTES, time.monotonic() + PERIOD_S
    more = True
    while more:
        try:
            message = await asyncio.wait_for(receive(), until - time.monotonic())
        except TimeoutError:
            raise HTTPException(408, "The request does not get on.") from None
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > announced:
            raise HTTPException(413, "The request is longer than it has said.")
        if len(body) >= due:
            due, until = len(body) + _LEAST_BYTES, time.monotonic() + PERIOD_S
    return bytes(body)


def already_read(body: bytes, receive: Receive) -> Receive:
    """For whoever is to see a request of which the body has been read."""
    whole: Message | None = {"type": "http.request", "body": body, "more_body": False}

    async def again() -> Message:
        nonlocal whole
        message, whole = whole, None
        return message or await receive()

    return again
