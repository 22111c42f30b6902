"""Making the missing runs: which they are, what fits into the time, and several side by side.

The time of a run is estimated from runs already made on the same kind of device: seconds for each
local epoch over as many samples, with the same strategy, model and data if possible, else with
anything on that model. Each process writes its result the moment a run ends. So whatever ends this
program, finished runs are kept, and the same command continues with the rest.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path

from adaptcl.config.config import Config, configure
from paper.experiment import Experiment, PlannedRun
from paper.process import RoundsDone, RunDone, RunFailed, RunOrder, RunProcess
from paper.result import Provenance, RunResult
from paper.store import Store, run_id, run_key

_TICK_S = 0.5
"""How often the time limit is checked."""
_REPORT_AFTER_S = 20.0
"""How often a run's progress is printed."""


@dataclass(frozen=True)
class RunOptions:
    """The options of the command line on how to run."""

    data_dir: str = ""
    device: str = "cpu"
    precision: str = "tf32"
    rounds: int | None = None
    """Cut every run short to this many rounds, as a smoke test."""
    checkpoint_every: int = 50

    def apply(self, config: Config) -> Config:
        changes = {
            "data_dir": self.data_dir,
            "device": self.device,
            "precision": self.precision,
            "checkpoint_every": self.checkpoint_every,
            **({} if self.rounds is None else {"rounds": self.rounds}),
        }
        values = {k: v for k, v in config.values().items() if v is not None}
        return configure({**values, **changes})


def missing_runs(
    experiments: Iterable[Experiment],
    store: Store,
    options: RunOptions,
    seeds: Sequence[int] | None = None,
) -> list[PlannedRun]:
    """The runs without a result, each once, in order of priority.

    At equal priority, every run of the first seed comes before any of the second: one seed of
    everything says more than three seeds of something.
    """
    found: dict[str, PlannedRun] = {}
    for experiment in experiments:
        for planned in experiment.planned_runs():
            if seeds is not None and planned.config.job.seed not in seeds:
                continue
            placed = replace(planned, config=options.apply(planned.config))
            name = run_key(placed.config.values())
            before = found.get(name)
            if before is None or placed.priority < before.priority:
                found[name] = placed
    left = [planned for name, planned in found.items() if name not in store.runs]
    return sorted(left, key=lambda planned: (planned.priority, planned.config.job.seed))


@dataclass(frozen=True)
class Estimator:
    """Estimates the time of runs from finished ones."""

    results: Sequence[RunResult]
    device: str
    """As a result's provenance names it."""

    def seconds(self, config: Config) -> float | None:
        """The time of a run; None if nothing like it has run on this device."""
        job = config.job
        alike = [
            result
            for result in self.results
            if result.provenance.device == self.device
            and result.settings["model"] == job.model
            and result.settings.get("samples", 0) == job.samples
        ]
        closest = [
            result
            for result in alike
            if (result.settings["strategy"], result.settings["data"]) == (job.strategy, job.data)
        ]
        rates = [_seconds_an_epoch(result) for result in closest or alike]
        return statistics.median(rates) * job.rounds * config.recipe.epochs if rates else None


def fits(estimate: float | None, left: float, limit: float) -> bool:
    """Whether to begin a run with this much time left.

    A run without an estimate is tried. A run too long for the whole limit begins if at least half
    of the limit is left: next time it continues from its checkpoint.
    """
    if estimate is None:
        return left > 0
    return estimate <= left or (estimate > limit and left >= limit / 2)


def _seconds_an_epoch(result: RunResult) -> float:
    epochs = float(result.settings["rounds"]) * float(result.settings["epochs"])
    return result.summary.wall_time_s / epochs


@dataclass(frozen=True)
class Limits:
    """How many runs at once, and how long."""

    side_by_side: int = 1
    seconds: float = float("inf")


@dataclass(frozen=True)
class RunnerOutcome:
    """How many runs were made, failed and remain."""

    done: int
    failed: tuple[str, ...]
    left: int
    """Runs that did not begin or that the time limit stopped."""


@dataclass
class _Busy:
    process: RunProcess
    planned: PlannedRun
    began: float
    reported: float


class Runner:
    """Carries out runs in separate processes."""

    def __init__(
        self,
        store: Store,
        options: RunOptions,
        limits: Limits,
        work: Path,
        provenances: dict[str, Provenance],
        say: Callable[[str], None],
    ) -> None:
        """`provenances` has the provenance of new results for each data set."""
        self._store = store
        self._options = options
        self._limits = limits
        self._work = work
        self._provenances = provenances
        self._say = say
        self._busy: dict[Connection, _Busy] = {}
        self._free: list[RunProcess] = []
        self._finished = 0
        self._failed: list[str] = []

    def run(self, runs: Sequence[PlannedRun]) -> RunnerOutcome:
        """Make these runs, in this order if the time allows."""
        began = time.monotonic()
        waiting = list(runs)
        total = len(waiting)
        try:
            while True:
                left = began + self._limits.seconds - time.monotonic()
                self._begin(waiting, left)
                if not self._busy or left <= 0:
                    break
                for connection in wait(list(self._busy), timeout=min(_TICK_S, max(left, 0.0))):
                    assert isinstance(connection, Connection)
                    self._receive(connection, total)
        finally:
            stopped = [busy.planned.label for busy in self._busy.values()]
            for process in (*(busy.process for busy in self._busy.values()), *self._free):
                process.end()
        for label in stopped:
            self._say(f"stopped by the time limit: {label}; it continues next time")
        return RunnerOutcome(self._finished, tuple(self._failed), len(waiting) + len(stopped))

    def _begin(self, waiting: list[PlannedRun], left: float) -> None:
        """Begin runs that fit, in order, while there is a free process."""
        for planned in list(waiting):
            if len(self._busy) >= self._limits.side_by_side:
                return
            device = self._provenances[planned.config.job.data].device
            estimate = Estimator(list(self._store.runs.values()), device).seconds(planned.config)
            if fits(estimate, left, self._limits.seconds):
                waiting.remove(planned)
                self._start(planned)

    def _start(self, planned: PlannedRun) -> None:
        job = planned.config.job
        provenance = self._provenances[job.data]
        values = {k: v for k, v in planned.config.values().items() if v is not None}
        name = f"{run_id(values, provenance.data_sha256)}-{provenance.precision}"
        process = self._free_process()
        smoke = self._options.rounds is not None
        process.start(RunOrder(values, provenance, self._store.folder, self._work / name, smoke))
        now = time.monotonic()
        self._busy[process.connection] = _Busy(process, planned, now, now)
        self._say(f"begun: {planned.label}, {job.strategy}, seed {job.seed}")

    def _free_process(self) -> RunProcess:
        """A process without a run: an old one if it is still alive, else a new one."""
        while self._free:
            process = self._free.pop()
            if process.alive:
                return process
            process.end()
        return RunProcess()

    def _receive(self, connection: Connection, total: int) -> None:
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
                self._free.append(busy.process)
            self._fail(busy, message.reason, total)
            return
        self._free.append(busy.process)
        assert isinstance(message, RunDone)
        self._finished += 1
        summary = self._store.add(message.path).summary
        self._say(
            f"{self._count(total)} done: {busy.planned.label}, seed {summary.seed}: accuracy "
            f"{100 * summary.main_value:.2f} % (best {100 * summary.best_value:.2f} %), "
            f"{summary.virtual_time_s / 60:.1f} virtual minutes, "
            f"{summary.wall_time_s:.0f} s of wall time"
        )

    def _fail(self, busy: _Busy, reason: str, total: int) -> None:
        self._failed.append(busy.planned.label)
        self._say(f"{self._count(total)} failed: {busy.planned.label}: {reason}")

    def _progress(self, busy: _Busy, message: RoundsDone) -> None:
        now = time.monotonic()
        if now - busy.reported < _REPORT_AFTER_S:
            return
        busy.reported = now
        seed = busy.planned.config.job.seed
        self._say(
            f"round {message.done}/{message.total}: {busy.planned.label}, seed {seed} "
            f"({now - busy.began:.0f} s)"
        )

    def _count(self, total: int) -> str:
        return f"[{self._finished + len(self._failed)}/{total}]"
