"""A process that carries out runs one after the other, beside others of its kind.

Several processes share one GPU better than several threads share one interpreter, and a run that
dies takes no other with it. A process serves many runs, because importing PyTorch and decoding
images may take as long as the rounds of a run.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from adaptcl import config as configuration
from adaptcl.errors import AdaptCLError
from paper.one_run import carry_out
from paper.provenance import Provenance
from paper.result import write_result
from paper.store import result_path

_REPORT_EVERY_S = 1.0


@dataclass(frozen=True)
class RunOrder:
    """A run to carry out."""

    values: dict[str, Any]
    """Its settings."""
    provenance: Provenance
    results: Path
    work: Path
    smoke: bool


@dataclass(frozen=True)
class RoundsDone:
    """The progress of a run."""

    done: int
    total: int


@dataclass(frozen=True)
class RunDone:
    """A run is over and its result is written."""

    path: Path


@dataclass(frozen=True)
class RunFailed:
    """A run ended with an error."""

    reason: str
    unforeseen: bool
    """Then the state of the process, and of its view of the GPU, is unknown."""


class RunProcess:
    """A process, seen from outside."""

    def __init__(self) -> None:
        # Forked processes cannot use CUDA once their parent has.
        context = multiprocessing.get_context("spawn")
        self.connection, inside = context.Pipe()
        self._process: BaseProcess = context.Process(target=_serve, args=(inside,), daemon=True)
        self._process.start()
        inside.close()

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def start(self, order: RunOrder) -> None:
        self.connection.send(order)

    def end(self) -> None:
        """Stop it now; an unfinished run can continue from its checkpoint."""
        self._process.kill()
        self._process.join()
        self.connection.close()


def _serve(connection: Connection) -> None:
    # Ctrl-C reaches every process of a terminal, but only the parent decides whether to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            order = connection.recv()
        except EOFError:
            return
        connection.send(_carry_out(order, connection))


def _carry_out(order: RunOrder, connection: Connection) -> RunDone | RunFailed:
    try:
        result = carry_out(
            configuration.configure(order.values),
            order.provenance,
            order.work,
            _ProgressSender(connection),
            smoke=order.smoke,
        )
        path = result_path(order.results, result.settings, order.provenance.data_sha256)
        write_result(path, result.to_json())
    except AdaptCLError as error:
        return RunFailed(str(error), unforeseen=False)
    except Exception as error:
        # The other runs can continue whatever it was, and the user must hear of it.
        return RunFailed(f"{type(error).__name__}: {error}", unforeseen=True)
    return RunDone(path)


class _ProgressSender:
    """Sends a run's progress, but not more often than anybody looks."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._last = 0.0

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._last >= _REPORT_EVERY_S or done == total:
            self._last = now
            self._connection.send(RoundsDone(done, total))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
