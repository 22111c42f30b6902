"""One run of an experiment, from its settings to its result, in a process beside others.

Several processes share one GPU better than several threads share one interpreter, and a run that
dies takes no other with it. A process serves many runs, because importing PyTorch and decoding
images may take as long as the rounds of a run.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from adaptcl import data, models
from adaptcl.config.config import Config, configure
from adaptcl.data import DataSet
from adaptcl.errors import AdaptCLError, RunFolderError
from adaptcl.events import Event, RoundFinished
from adaptcl.pruning import mean_similarity
from adaptcl.records import RoundRecord
from adaptcl.runs.evaluator import TestSetEvaluator
from adaptcl.runs.files.folder import RunFolder
from adaptcl.runs.session import Session, run_session
from adaptcl.runs.simulated_session import simulated_session
from adaptcl.runs.workload import Workload, workload_from_python
from adaptcl.storage import Tree
from adaptcl.strategies.strategy import Closed, Strategy
from adaptcl.training.objectives.evaluation import Score
from adaptcl.units import Kept, UnitMap, flops, parameters, size_bytes
from paper.result import Provenance, RunResult, Size, round_series, workers_at_changes, write_result
from paper.store import recorded_settings, result_path

PAIR = (1, 3)
"""The paper's workers two and four, whose sub-models it compares."""
_MOST_WARNINGS = 10


def carry_out(
    config: Config,
    provenance: Provenance,
    work: Path,
    report: Callable[[int, int], None],
    *,
    smoke: bool = False,
) -> RunResult:
    """Run to the end, starting from the checkpoint in `work` if a killed process left one.

    `report` is called with the rounds done and the total. The folder is removed at the end.
    """
    session = simulated_session(config, _workload(config))
    evaluator = ObservingEvaluator(session)

    def listen(event: Event) -> None:
        if isinstance(event, RoundFinished):
            report(event.record.round, session.strategy.rounds)

    done = run_session(session, _folder(work, config), [listen], evaluator)
    units = session.workload.units
    result = RunResult(
        settings=recorded_settings(config.values()),
        provenance=provenance,
        smoke=smoke,
        summary=done.summary,
        whole=_size(units, units.everything()),
        sub_models=tuple(_size(units, kept) for kept in session.strategy.sub_models()),
        course=round_series(_judged_at_the_end(done.rounds, done.summary.main_value)),
        workers=workers_at_changes(done.rounds, evaluator.similarity),
        warnings=(*session.warnings, *evaluator.warnings)[:_MOST_WARNINGS],
    )
    shutil.rmtree(work, ignore_errors=True)
    return result


class ObservingEvaluator(TestSetEvaluator):
    """Tests a run's model in every form, and compares the sub-models of two workers."""

    def __init__(self, session: Session) -> None:
        super().__init__(session.config, session.workload, all_variants=True)
        self._units = session.workload.units
        self.warnings: list[str] = []
        self.similarity: dict[int, float] = {}

    def judge(self, strategy: Strategy, closed: Closed, is_last: bool) -> Score | None:
        self.warnings += closed.warnings
        score = super().judge(strategy, closed, is_last)
        kept = strategy.sub_models()
        if closed.similarity is not None and len(kept) > max(PAIR):
            pair = [kept[worker] for worker in PAIR]
            self.similarity[closed.round] = round(mean_similarity(self._units, pair), 5)
        return score

    def snapshot(self) -> Tree:
        return {
            "usual": super().snapshot(),
            "warnings": self.warnings,
            "similarity": list(self.similarity.items()),
        }

    def restore(self, tree: Tree) -> None:
        super().restore(tree["usual"])
        self.warnings = tree["warnings"]
        self.similarity = dict(tree["similarity"])


def _judged_at_the_end(records: Sequence[RoundRecord], accuracy: float) -> Sequence[RoundRecord]:
    *before, last = records
    return [*before, replace(last, accuracy=accuracy)]


def _size(units: UnitMap, kept: Kept) -> Size:
    return Size(parameters(units, kept), flops(units, kept), size_bytes(units, kept))


def _folder(work: Path, config: Config) -> RunFolder:
    """Open the folder to continue in; start a new one if there is none that can be read."""
    if (work / "config.toml").exists():
        folder = RunFolder.open(work)
        try:
            folder.left_off()
            return folder
        except RunFolderError:
            folder.close()
            shutil.rmtree(work)
    return RunFolder.create(work, config.to_toml())


def _workload(config: Config) -> Workload:
    """Model and data as `adaptcl run` makes them, but each process reads the data only once."""
    job = config.job
    read = _read(job.data, job.data_dir)
    model = models.build(job.model, read.train.shape, len(read.classes), job.seed)
    fixed = (*models.find(job.model).fixed, *job.fixed)
    return workload_from_python(model, read.train, read.test, replace(job, fixed=fixed))


@lru_cache(maxsize=2)
def _read(name: str, data_dir: str) -> DataSet:
    return data.load(name, Path(data_dir) if data_dir else None)


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
            configure(order.values),
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
