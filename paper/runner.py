"""Making the missing runs, several side by side, until all are done or the time is up.

Results are written by the processes themselves, each the moment its run ends. So it does not
matter how this ends: what is done is kept, and the same command goes on with the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path

from paper.experiment import Wanted
from paper.identity import run_id
from paper.process import Order, RoundsDone, RunDone, RunFailed, RunProcess
from paper.provenance import Provenance
from paper.schedule import Estimator, Here, fits
from paper.store import Store

Say = Callable[[str], None]
_TICK_S = 0.5
"""How often the time limit is looked at."""
_TELL_AFTER_S = 20.0
"""A run is heard of about this often."""


@dataclass(frozen=True)
class Limits:
    """How much may be done at once, and until when."""

    side_by_side: int = 1
    seconds: float = float("inf")


@dataclass(frozen=True)
class Ended:
    """How it ended."""

    done: int
    failed: tuple[str, ...]
    left: int
    """Runs that were not begun, or were stopped by the time limit."""


@dataclass
class _Busy:
    process: RunProcess
    wanted: Wanted
    began: float
    heard: float


class Runner:
    """Carries out runs in processes of their own."""

    def __init__(
        self,
        store: Store,
        here: Here,
        limits: Limits,
        work: Path,
        provenances: dict[str, Provenance],
        say: Say,
    ) -> None:
        """`provenances` says for each data set what results made now come from."""
        self._store = store
        self._here = here
        self._limits = limits
        self._work = work
        self._provenances = provenances
        self._say = say
        self._busy: dict[Connection, _Busy] = {}
        self._idle: list[RunProcess] = []
        self._finished = 0
        self._failed: list[str] = []

    def run(self, missing: Sequence[Wanted]) -> Ended:
        """Make these runs, in this order as far as the time allows."""
        began = time.monotonic()
        waiting = list(missing)
        total = len(waiting)
        try:
            while True:
                left = began + self._limits.seconds - time.monotonic()
                self._begin(waiting, left)
                if not self._busy or left <= 0:
                    break
                for connection in wait(list(self._busy), timeout=min(_TICK_S, max(left, 0.0))):
                    assert isinstance(connection, Connection)
                    self._hear(connection, total)
        finally:
            stopped = [busy.wanted.label for busy in self._busy.values()]
            for process in (*(busy.process for busy in self._busy.values()), *self._idle):
                process.end()
        for label in stopped:
            self._say(f"stopped by the time limit: {label}; it goes on next time")
        return Ended(self._finished, tuple(self._failed), len(waiting) + len(stopped))

    def _begin(self, waiting: list[Wanted], left: float) -> None:
        """Begin what fits, most urgent first, while there is a process to spare."""
        for wanted in list(waiting):
            if len(self._busy) >= self._limits.side_by_side:
                return
            device = self._provenances[wanted.config.job.data].device
            estimate = Estimator(list(self._store.runs.values()), device).seconds(wanted.config)
            if fits(estimate, left, self._limits.seconds):
                waiting.remove(wanted)
                self._give(wanted)

    def _give(self, wanted: Wanted) -> None:
        job = wanted.config.job
        provenance = self._provenances[job.data]
        values = {k: v for k, v in wanted.config.values().items() if v is not None}
        name = f"{run_id(values, provenance.data_sha256)}-{provenance.precision}"
        process = self._spare()
        smoke = self._here.rounds is not None
        process.give(Order(values, provenance, self._store.folder, self._work / name, smoke))
        now = time.monotonic()
        self._busy[process.connection] = _Busy(process, wanted, now, now)
        self._say(f"begun: {wanted.label}, {job.strategy}, seed {job.seed}")

    def _spare(self) -> RunProcess:
        """A process that has nothing to do, an old one if it has not died meanwhile."""
        while self._idle:
            process = self._idle.pop()
            if process.alive:
                return process
            process.end()
        return RunProcess()

    def _hear(self, connection: Connection, total: int) -> None:
        busy = self._busy[connection]
        try:
            message = connection.recv()
        except (EOFError, OSError):
            busy.process.end()
            del self._busy[connection]
            self._fail(busy, "its process died", total)
            return
        if isinstance(message, RoundsDone):
            self._progress(busy, message)
            return
        del self._busy[connection]
        if isinstance(message, RunFailed):
            if message.unforeseen:
                busy.process.end()
            else:
                self._idle.append(busy.process)
            self._fail(busy, message.reason, total)
            return
        self._idle.append(busy.process)
        assert isinstance(message, RunDone)
        self._finished += 1
        summary = self._store.take(message.path).summary
        self._say(
            f"{self._count(total)} done: {busy.wanted.label}, seed {summary.seed}: accuracy "
            f"{100 * summary.accuracy:.2f} % (best {100 * summary.best_accuracy:.2f} %), "
            f"{summary.virtual_time_s / 60:.1f} virtual minutes, "
            f"{summary.wall_time_s:.0f} s of wall time"
        )

    def _fail(self, busy: _Busy, reason: str, total: int) -> None:
        self._failed.append(busy.wanted.label)
        self._say(f"{self._count(total)} failed: {busy.wanted.label}: {reason}")

    def _progress(self, busy: _Busy, message: RoundsDone) -> None:
        now = time.monotonic()
        if now - busy.heard < _TELL_AFTER_S:
            return
        busy.heard = now
        seed = busy.wanted.config.job.seed
        self._say(
            f"round {message.done}/{message.total}: {busy.wanted.label}, seed {seed} "
            f"({now - busy.began:.0f} s)"
        )

    def _count(self, total: int) -> str:
        return f"[{self._finished + len(self._failed)}/{total}]"
