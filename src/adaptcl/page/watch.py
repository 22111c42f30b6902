"""`adaptcl watch`: the page on a local port, kept up to date while runs go on.

It reads run folders and writes nothing, so killing it never touches a run. Python's own HTTP
server is enough for a page that few look at; changes reach the browser as server-sent events.
"""

from __future__ import annotations

import hmac
import os
import secrets
import shlex
import socket
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from operator import is_not
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

from adaptcl.errors import RunFolderError, SettingError
from adaptcl.page.report import RunView, Widths, json_text, page, shown_together
from adaptcl.report.comparisons.labels import distinct_labels
from adaptcl.report.saved_run import Run, by_strategy, read_run
from adaptcl.runs.files.run_files import CONFIG, ROUNDS, SUB_MODELS, SUMMARY, run_folders
from adaptcl.runs.files.status_file import STATUS, is_alive, read_status
from adaptcl.strategies.dc_asgd import planned_rounds

LOOK_EVERY_S = 0.5
_MOST_SHARE = 0.008
"""The share of a processor that the page may take for each run that goes on."""
_STANDING, _REST = 0.25, 0.75
"""How that share is divided: for how the runs stand, and for all the rest."""
_LONGEST_PAUSE_S = 150.0
_SIGN_OF_LIFE_S = 15.0
_HIGHEST_PORT = 65535


class _IPv6Server(ThreadingHTTPServer):
    address_family = socket.AF_INET6


class Watch:
    """A server of the page about some runs."""

    def __init__(self, places: Sequence[Path], host: str = "127.0.0.1", port: int = 0) -> None:
        self.token = None if _is_loopback(host) else secrets.token_urlsafe(16)
        """A part of the address where other machines can reach it."""
        self._view = View(FollowedRuns(places))
        handler = type("Handler", (_Handler,), {"view": self._view, "token": self.token})
        if not 0 <= port <= _HIGHEST_PORT:
            raise SettingError(f"port is {port}, but it must be from 0 to {_HIGHEST_PORT}.")
        is_ipv6 = ":" in host
        place = f"[{host}]" if is_ipv6 else host
        try:
            self._server = (_IPv6Server if is_ipv6 else ThreadingHTTPServer)((host, port), handler)
        except OSError as error:
            raise SettingError(
                f"Nothing can listen at {place}:{port}: {error.strerror}; choose another host or "
                "port."
            ) from None
        self._server.daemon_threads = True
        bound = self._server.server_address
        self.port = int(bound[1])
        self.address = f"http://{place}:{self.port}/" + (
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
        """All that the page shows, as JSON."""
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
        """No log: the terminal may show a run's progress."""


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


# Following runs ---------------------------------------------------------------------------------

Version = tuple[tuple[str, int, int], ...]
"""Name, size and time of change of each file that the page depends on."""
_RESULTS = (CONFIG, ROUNDS, SUB_MODELS, SUMMARY)


class FollowedRuns:
    """Run folders, or folders above them, as they are now."""

    def __init__(self, places: Sequence[Path]) -> None:
        self._places = places
        self._views: dict[Path, tuple[Version, RunView]] = {}
        self._shown: list[RunView] = []
        self._runs: Sequence[Run] = ()
        self._edition = 0
        """Counts the changes of `text`."""
        self.text = json_text(shown_together([], []))
        """All that the page shows beside how the runs stand, as JSON."""
        self.running = 0
        """How many runs go on."""

    def version(self) -> Version:
        """Differs from the last one when there is something new to show."""
        found: list[tuple[str, int, int]] = []
        self.running = 0
        for folder in self._folders():
            found += _version(folder / name for name in (*_RESULTS, STATUS))
            status = read_status(folder)
            if status is not None:
                alive = is_alive(status)
                self.running += alive
                found.append((f"{folder} alive", int(alive), 0))
        return tuple(found)

    def news(self) -> str:
        """How the runs stand, and the number of the `text` that goes with it, as JSON."""
        return json_text({"edition": self._edition, "live": [_live(run) for run in self._runs]})

    def read(self) -> None:
        """Bring `text` up to date; a run is read again only if its files have changed."""
        views = {}
        for folder in self._folders():
            version = _version(folder / name for name in _RESULTS)
            known = self._views.get(folder)
            try:
                if known is None or known[0] != version:
                    known = version, RunView.of(read_run(folder), Widths.read(folder))
            except RunFolderError:
                continue  # a run that is just beginning; the next look finds it
            self._views[folder] = known
            views[folder] = known[1]
        found = list(views.values())
        if len(found) != len(self._shown) or any(map(is_not, found, self._shown)):
            self._shown, self._edition = found, self._edition + 1
            self._runs = distinct_labels(by_strategy([view.run for view in found]))
            together = shown_together(self._runs, [views[run.folder] for run in self._runs])
            self.text = json_text(together)

    def _folders(self) -> list[Path]:
        return [folder for place in self._places for folder in run_folders(place, levels=2)]


def _version(paths: Iterable[Path]) -> Version:
    found = []
    for path in paths:
        with suppress(OSError):  # it is not there
            stat = path.stat()
            found.append((str(path), stat.st_size, stat.st_mtime_ns))
    return tuple(found)


def _live(run: Run) -> dict[str, Any]:
    """How a run stands. It may have got further since its rounds were read."""
    status = read_status(run.folder)
    done = run.rounds[-1].round if run.rounds else 0
    if run.summary is not None or (run.folder / SUMMARY).exists():
        state = "finished"
    elif status is not None and is_alive(status):
        state = "running"
    elif status is None and not run.rounds:
        state = "pending"
    else:
        state = "stopped"
    status = status or {}
    done = max(done, status.get("round", 0))
    return {
        "label": run.label,
        "state": state,
        "round": done,
        "rounds": status.get("rounds", planned_rounds(run.config)),
        "left_s": _estimated_seconds_left(status, done) if state == "running" else None,
        "workers": _states(status.get("workers", [])),
        "resume": shlex.join(["adaptcl", "resume", str(run.folder)]),
    }


def _estimated_seconds_left(status: dict[str, Any], done: int) -> float | None:
    """At the pace since the run began or was resumed; None before its first round ends."""
    try:
        before = int(status["resumed_after"])
        elapsed = time.time() - float(status["began_s"])
        if done <= before:
            return None
        return elapsed / (done - before) * (int(status["rounds"]) - done)
    except (KeyError, TypeError, ValueError):
        return None


def _states(workers: Sequence[Sequence[Any]]) -> list[list[str]]:
    """Each worker's name and state; of many, how many are in which state."""
    if len(workers) <= 40:
        return [[f"worker {worker}", str(state)] for worker, state in workers]
    counts: dict[str, int] = {}
    for _, state in workers:
        counts[str(state)] = counts.get(str(state), 0) + 1
    return [[str(count), state] for state, count in sorted(counts.items())]
