"""`adaptcl watch`: the page on a local port, kept up to date while runs go on.

It reads run folders and writes nothing, so killing it never touches a run. Python's own HTTP
server is enough for a page that few look at; changes reach the browser as server-sent events.
"""

from __future__ import annotations

import hmac
import os
import secrets
import threading
import time
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qs, urlsplit

from adaptcl.errors import SettingError
from adaptcl.page.follow import FollowedRuns, Version
from adaptcl.page.html import page

LOOK_EVERY_S = 0.5
_MOST_SHARE = 0.008
"""Of a processor's time for each run that goes on, whatever its size: they may need it."""
_STANDING, _REST = 0.25, 0.75
"""Parts of that share, for how the runs stand and for all the rest."""
_LONGEST_PAUSE_S = 60.0
_SIGN_OF_LIFE_S = 15.0


class Watch:
    """A server of the page about some runs."""

    def __init__(self, places: Sequence[Path], host: str = "127.0.0.1", port: int = 0) -> None:
        self.token = None if _is_loopback(host) else secrets.token_urlsafe(16)
        """What the address must carry where others can reach it."""
        self._view = View(FollowedRuns(places))
        handler = type("Handler", (_Handler,), {"view": self._view, "token": self.token})
        try:
            self._server = ThreadingHTTPServer((host, port), handler)
        except OSError as error:
            raise SettingError(
                f"Nothing can listen at {host}:{port}: {error.strerror}; choose another port."
            ) from None
        self._server.daemon_threads = True
        bound = self._server.server_address
        self.port = int(bound[1])
        self.address = f"http://{host}:{self.port}/" + (
            f"?token={self.token}" if self.token else ""
        )

    def serve(self) -> None:
        """Serve until somebody interrupts."""
        self._server.serve_forever(poll_interval=0.2)

    def start(self) -> None:
        """Serve from a thread that ends with the process."""
        threading.Thread(target=self.serve, name="watch", daemon=True).start()

    def close(self) -> None:
        """End a page that was started."""
        self._server.shutdown()
        self._server.server_close()

    def close_at_once(self) -> None:
        """End a page whose `serve` was interrupted."""
        self._server.server_close()


class View:
    """What the page shows, worked out once for each change however many look at it.

    The more processor time a look takes, the later is the next one. How runs stand takes little, so
    that is seen soon even of many large runs, whose curves follow later.
    """

    def __init__(self, followed: FollowedRuns) -> None:
        self._followed = followed
        self._lock = threading.Lock()
        self._next_look = self._next_read = 0.0
        self._seen: Version | None = None
        self._read: Version | None = None
        self._news = ""

    def text(self) -> str:
        """All of it, as JSON."""
        with self._lock:
            self._look()
            return f"{self._followed.text[:-1]},{self._news[1:]}"

    def news(self) -> str:
        """How the runs stand, as JSON, and a number that changes with all the rest."""
        with self._lock:
            self._look()
            return self._news

    def _look(self) -> None:
        if time.monotonic() < self._next_look:
            return
        began = time.thread_time()
        version = self._followed.version()
        if version != self._read and time.monotonic() >= self._next_read:
            reading = time.thread_time()
            self._followed.read()
            spent = time.thread_time() - reading
            began += spent
            self._next_read = time.monotonic() + self._pause(spent, _REST)
            self._read, self._seen = version, None
        if version != self._seen:
            self._news = self._followed.news()
            self._seen = version
        pause = max(self._pause(time.thread_time() - began, _STANDING), LOOK_EVERY_S)
        self._next_look = time.monotonic() + pause

    def _pause(self, spent: float, part: float) -> float:
        """How long to rest after a look that took so much processor time."""
        # More runs than processors share these.
        runs = min(max(1, self._followed.running), os.cpu_count() or 1)
        return min(spent / (_MOST_SHARE * part * runs), _LONGEST_PAUSE_S)


class _Handler(BaseHTTPRequestHandler):
    """Answers GET requests for the page, its data and its changes; nothing else."""

    view: ClassVar[View]
    token: ClassVar[str | None]
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        if not self._may_look(parse_qs(address.query).get("token", [""])[0]):
            self.send_error(HTTPStatus.FORBIDDEN)
        elif address.path == "/":
            self._send("text/html; charset=utf-8", page(self.view.text()))
        elif address.path == "/data.json":
            self._send("application/json", self.view.text())
        elif address.path == "/events":
            self._send_changes()
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _may_look(self, token: str) -> bool:
        if self.token is not None:
            return hmac.compare_digest(token.encode(), self.token.encode())
        # A foreign page whose name was made to lead here must not read the runs.
        host = urlsplit(f"//{self.headers.get('Host', '')}").hostname or ""
        return host == "localhost" or _is_loopback(host)

    def _send(self, kind: str, text: str) -> None:
        content = text.encode("utf-8")
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.end_headers()
        self.wfile.write(content)

    def _send_changes(self) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Connection", "close")
        self.end_headers()
        seen = ""
        spoke = time.monotonic()
        try:
            while True:
                news = self.view.news()
                if news != seen:
                    seen, spoke = news, time.monotonic()
                    self._say(f"data: {news}\n\n".encode())
                elif time.monotonic() - spoke > _SIGN_OF_LIFE_S:
                    spoke = time.monotonic()
                    self._say(b": still here\n\n")
                time.sleep(LOOK_EVERY_S)
        except OSError:
            pass  # whoever looked has gone
        self.close_connection = True

    def _say(self, words: bytes) -> None:
        self.wfile.write(words)
        self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:
        """A terminal that shows a run's progress is no place for a log of requests."""


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
