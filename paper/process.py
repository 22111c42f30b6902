"""The process in which runs are carried out, one after the other, beside others of its kind.

Several processes share one GPU better than several threads share one interpreter, and a run that
dies takes no other with it. A process lives on from run to run, because importing PyTorch and
decoding images takes as long as many a run's rounds.
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
from paper.result import write
from paper.store import result_path

_TELL_EVERY_S = 1.0


@dataclass(frozen=True)
class Order:
    """A run to carry out."""

    values: dict[str, Any]
    """Its settings."""
    provenance: Provenance
    results: Path
    work: Path
    smoke: bool


@dataclass(frozen=True)
class RoundsDone:
    """How far a run is."""

    done: int
    total: int


@dataclass(frozen=True)
class RunDone:
    """A run is over and its result written."""

    path: Path


@dataclass(frozen=True)
class RunFailed:
    """A run could not be carried out."""

    reason: str
    unforeseen: bool
    """Then nobody knows in which state it has left its process, or the GPU seen from there."""


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
        """Whether it can still be given anything."""
        return self._process.is_alive()

    def give(self, order: Order) -> None:
        """Have a run carried out."""
        self.connection.send(order)

    def end(self) -> None:
        """Stop it now, whatever it is doing; a run under way can go on from its checkpoint."""
        self._process.kill()
        self._process.join()
        self.connection.close()


def _serve(connection: Connection) -> None:
    # Ctrl-C reaches every process of a terminal; whether to stop is the parent's to say.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            order = connection.recv()
        except EOFError:
            return
        connection.send(_carried_out(order, connection))


def _carried_out(order: Order, connection: Connection) -> RunDone | RunFailed:
    told = _Telling(connection)
    try:
        result = carry_out(
            configuration.configure(order.values),
            order.provenance,
            order.work,
            told,
            smoke=order.smoke,
        )
        path = result_path(order.results, result.settings, order.provenance.data_sha256)
        write(path, result.to_json())
    except AdaptCLError as error:
        return RunFailed(str(error), unforeseen=False)
    except Exception as error:
        # Whatever it was, the other runs can go on, and somebody must be told.
        return RunFailed(f"{type(error).__name__}: {error}", unforeseen=True)
    return RunDone(path)


class _Telling:
    """Tells how far a run is, but not more often than anybody would look."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._last = 0.0

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._last >= _TELL_EVERY_S or done == total:
            self._last = now
            self._connection.send(RoundsDone(done, total))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
