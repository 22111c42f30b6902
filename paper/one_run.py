"""One run of an experiment, from its settings to its result."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from adaptcl import data, models
from adaptcl.config import Config
from adaptcl.data import DataSet
from adaptcl.errors import RunFolderError
from adaptcl.events import Event, RoundFinished
from adaptcl.pruning import similarity
from adaptcl.records import RoundRecord
from adaptcl.runs.evaluator import USUAL_SHARE, Averaging, TestSetEvaluator
from adaptcl.runs.folder import RunFolder
from adaptcl.runs.session import Session, run_session, simulated_session
from adaptcl.runs.workload import Workload, workload_from_python
from adaptcl.storage import Tree
from adaptcl.strategies.strategy import Closed, Strategy
from adaptcl.training.evaluation import USUAL_COUNT, FreshStatistics, Score
from adaptcl.units import Kept, State, UnitMap, flops, parameters, size_bytes
from paper.identity import recorded_settings
from paper.provenance import Provenance
from paper.result import RunResult, Size, round_series, workers_at_changes

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
        course=round_series(
            _judged_at_the_end(done.rounds, done.summary.main_value),
            evaluator.averaged,
            evaluator.fresh,
        ),
        workers=workers_at_changes(done.rounds, evaluator.similarity),
        warnings=(*session.warnings, *evaluator.warnings)[:_MOST_WARNINGS],
    )
    shutil.rmtree(work, ignore_errors=True)
    return result


class ObservingEvaluator:
    """Tests a run's model as its job says, and also what else could be delivered.

    The paper's jobs test the last model. In the same run this finds what the mean of the latest
    models would have been right about, and the last one with fresh statistics. It also compares
    the sub-models of two workers.
    """

    def __init__(self, session: Session) -> None:
        workload = session.workload
        self._usual = TestSetEvaluator(session.config, workload)
        self._units = workload.units
        self._mean = Averaging(USUAL_SHARE, workload.units.unchanging)
        self._fresh = FreshStatistics(workload.model, workload.worker_samples, USUAL_COUNT)
        self.warnings: list[str] = []
        self.similarity: dict[int, float] = {}
        self.averaged: dict[int, float] = {}
        self.fresh: dict[int, float] = {}

    def judge(self, strategy: Strategy, closed: Closed, is_last: bool) -> Score | None:
        self.warnings += closed.warnings
        state = strategy.model()
        mean = self._mean.add(state, closed)
        score = self._usual.judge(strategy, closed, is_last)
        if score is not None:
            self.averaged[closed.round] = self._usual.test(mean).metrics["accuracy"]
            fresh = self._usual.test(self._fresh.of(state))
            self.fresh[closed.round] = fresh.metrics["accuracy"]
        kept = strategy.sub_models()
        if closed.similarity is not None and len(kept) > max(PAIR):
            first, second = (kept[worker] for worker in PAIR)
            self.similarity[closed.round] = round(similarity(self._units, first, second), 5)
        return score

    @property
    def tested(self) -> State:
        return self._usual.tested

    def delivered(self, strategy: Strategy) -> State:
        return self._usual.delivered(strategy)

    def final_score(self, delivered: State) -> Score:
        return self._usual.final_score(delivered)

    def snapshot(self) -> Tree:
        return {
            "usual": self._usual.snapshot(),
            "mean": self._mean.snapshot(),
            "warnings": self.warnings,
            "similarity": list(self.similarity.items()),
            "averaged": list(self.averaged.items()),
            "fresh": list(self.fresh.items()),
        }

    def restore(self, tree: Tree) -> None:
        self._usual.restore(tree["usual"])
        self._mean.restore(tree["mean"])
        self.warnings = tree["warnings"]
        self.similarity = dict(tree["similarity"])
        self.averaged = dict(tree["averaged"])
        self.fresh = dict(tree["fresh"])


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
