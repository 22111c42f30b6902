"""What a run is doing at this moment, in a small file of its folder: for whoever watches it.

The records of a run say what each round came to once it is over. `status.json` says what happens in
between: who is sent a task, trains, sends its update, waits or is lost. In a simulation that is
what each worker does at the moment that the virtual clock shows. The file is removed when the run
ends, well or badly; only a killed process leaves it behind.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from adaptcl.errors import RunFolderError
from adaptcl.events import (
    Event,
    PhaseBegan,
    RoundFinished,
    RunStarted,
    TaskSent,
    UpdateArrived,
    WorkerJoined,
    WorkerLost,
)
from adaptcl.storage import written_whole
from adaptcl.training import Timing

STATUS = "status.json"
_EVERY_S = 0.5  # at most this often the file is written, however much happens


class StatusFile:
    """A listener that keeps `status.json` up to date until it is closed."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / STATUS
        self._changed = threading.Condition()
        self._workers: dict[int, str | Timing] = {}
        """What each does, or when it does what in its task."""
        self._now = 0.0  # on the run's clock, as far as events tell
        self._values: dict[str, Any] = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "began_s": time.time(),
        }
        self._is_new = self._is_closed = False
        threading.Thread(target=self._keep_up, name="status", daemon=True).start()

    def __call__(self, event: Event) -> None:
        with self._changed:
            match event:
                case RunStarted():
                    done = event.rounds_done
                    self._values |= {"rounds": event.rounds, "round": done, "resumed_after": done}
                case TaskSent(worker, virtual_time_s=now):
                    self._workers[worker], self._now = event.expected or "sending", now
                case PhaseBegan(worker, phase):
                    self._workers[worker] = phase
                case UpdateArrived(worker, virtual_time_s=now):
                    self._workers[worker], self._now = "waiting", now
                case WorkerLost(worker):
                    self._workers[worker] = "lost"
                case WorkerJoined(worker):
                    self._workers[worker] = "waiting"
                case RoundFinished(record):
                    self._values["round"] = record.round
                case _:
                    return
            self._is_new = True
            self._changed.notify()

    def close(self) -> None:
        """Remove the file and never write it again."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
            with suppress(OSError):
                self._path.unlink(missing_ok=True)

    def _keep_up(self) -> None:
        """Write what is new, but not all the time."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_new or self._is_closed)
                if self._is_closed:
                    return
                self._write()
                self._is_new = False
            time.sleep(_EVERY_S)

    def _write(self) -> None:
        workers = [(each, _doing(what, self._now)) for each, what in sorted(self._workers.items())]
        content = json.dumps({**self._values, "workers": workers})
        # Nobody's run ends because a page about it could not be kept up to date.
        with suppress(RunFolderError), written_whole(self._path) as file:
            file.write(content.encode("utf-8"))


def _doing(what: str | Timing, now: float) -> str:
    if isinstance(what, str):
        return what
    if now < what.begin + what.send:
        return "sending"
    return "training" if now < what.begin + what.send + what.train else "receiving"


def read_status(folder: Path) -> dict[str, Any] | None:
    """What a run says it is doing; None if it says nothing, because it has ended or not begun."""
    try:
        found = json.loads((folder / STATUS).read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def is_alive(status: dict[str, Any]) -> bool:
    """Whether the process that wrote a status still runs, as far as this machine can tell."""
    if status.get("host") != socket.gethostname():
        return True
    try:
        os.kill(int(status["pid"]), 0)
    except ProcessLookupError:
        return False
    except (PermissionError, KeyError, TypeError, ValueError):
        return True
    return True
