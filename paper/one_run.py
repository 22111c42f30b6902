"""Carrying out one run of an experiment, and keeping of it what a result needs."""

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
from adaptcl.events import Event, RoundFinished, Warned
from adaptcl.pruning import similarity
from adaptcl.records import RoundRecord
from adaptcl.runs.averaging import USUAL_SHARE, Averaging
from adaptcl.runs.folder import RunFolder
from adaptcl.runs.materials import Materials, given
from adaptcl.runs.session import Session
from adaptcl.storage import Tree
from adaptcl.strategies.strategy import Closed
from adaptcl.training.evaluation import USUAL_COUNT
from adaptcl.units import Kept, State, UnitMap, flops, parameters, size_bytes
from paper.identity import effective
from paper.provenance import Provenance
from paper.result import RunResult, Size, course, workers_where_they_change

PAIR = (1, 3)
"""The paper's workers two and four, whose remaining networks it compares."""
_MOST_WARNINGS = 10


def carry_out(
    config: Config,
    provenance: Provenance,
    work: Path,
    told: Callable[[int, int], None],
    *,
    smoke: bool = False,
) -> RunResult:
    """Run to the end, from where `work` was left by a process that was killed.

    `told` is called with the rounds done and the rounds there will be. The folder is removed when
    the run is over.
    """
    materials = _materials(config)
    folder = _folder(work, config)
    try:
        result = _Observed(config, materials, folder, told).result(provenance, smoke)
    finally:
        folder.close()
    shutil.rmtree(work, ignore_errors=True)
    return result


class _Observed(Session):
    """A session that also looks at the sub-models, and at what else could be delivered.

    The paper's jobs test the last model. What the mean of the latest models would have been right
    about, and the last one with statistics measured anew, is found beside it in the same run.
    """

    def __init__(
        self,
        config: Config,
        materials: Materials,
        folder: RunFolder,
        told: Callable[[int, int], None],
    ) -> None:
        super().__init__(config, materials, folder, [self._observe])
        self._told = told
        self._similarity: dict[int, float] = {}
        self._warnings: list[str] = []
        self._mean = Averaging(USUAL_SHARE, self._units.constants)
        self._averaged: dict[int, float] = {}
        self._usual = self._measuring(USUAL_COUNT)
        self._fresh_accuracy: dict[int, float] = {}
        if (before := self.observed_before) is not None:
            self._similarity = dict(before["similarity"])
            self._warnings = before["warnings"]
            self._mean.restore(before["mean"])
            self._averaged = dict(before["averaged"])
            self._fresh_accuracy = dict(before["fresh"])

    def result(self, provenance: Provenance, smoke: bool) -> RunResult:
        """Run, and put together what is kept for good."""
        done = self.run()
        units = self._units
        return RunResult(
            settings=effective(self._config.values()),
            provenance=provenance,
            smoke=smoke,
            summary=done.summary,
            whole=_size(units, units.everything()),
            sub_models=tuple(_size(units, kept) for kept in self._strategy.sub_models()),
            course=course(
                _judged_at_the_end(done.rounds, done.summary.accuracy),
                self._averaged,
                self._fresh_accuracy,
            ),
            workers=workers_where_they_change(done.rounds, self._similarity),
            warnings=tuple(self._warnings[:_MOST_WARNINGS]),
        )

    def observed(self) -> Tree:
        """What no record of a round tells; kept in the checkpoint, it is that of its round."""
        return {
            "similarity": list(self._similarity.items()),
            "warnings": self._warnings,
            "mean": self._mean.snapshot(),
            "averaged": list(self._averaged.items()),
            "fresh": list(self._fresh_accuracy.items()),
        }

    def _accuracy(self, state: State, closed: Closed) -> float | None:
        mean = self._mean.add(state, closed)
        accuracy = super()._accuracy(state, closed)
        if accuracy is not None:
            self._averaged[closed.round] = self._measured(mean)
            self._fresh_accuracy[closed.round] = self._measured(self._usual.of(state))
        return accuracy

    def _observe(self, event: Event) -> None:
        if isinstance(event, Warned):
            self._warnings.append(event.message)
        if isinstance(event, RoundFinished):
            kept = self._strategy.sub_models()
            if event.record.similarity is not None and len(kept) > max(PAIR):
                first, second = (kept[worker] for worker in PAIR)
                alike = similarity(self._units, first, second)
                self._similarity[event.record.round] = round(alike, 5)
            self._told(event.record.round, self._strategy.rounds)


def _judged_at_the_end(records: Sequence[RoundRecord], accuracy: float) -> Sequence[RoundRecord]:
    *before, last = records
    return [*before, replace(last, accuracy=accuracy)]


def _size(units: UnitMap, kept: Kept) -> Size:
    return Size(parameters(units, kept), flops(units, kept), size_bytes(units, kept))


def _folder(work: Path, config: Config) -> RunFolder:
    """The folder to go on in; a new one where there is none, or one that cannot be read."""
    if (work / "config.toml").exists():
        folder = RunFolder.open(work)
        try:
            folder.left_off()
            return folder
        except RunFolderError:
            folder.close()
            shutil.rmtree(work)
    return RunFolder.create(work, config.to_toml())


def _materials(config: Config) -> Materials:
    """Model and data as `adaptcl run` would make them, but with data read once a process."""
    job = config.job
    read = _read(job.data, job.data_dir)
    model = models.build(job.model, read.train.shape, len(read.classes), job.seed)
    fixed = (*models.find(job.model).fixed, *job.fixed)
    return given(model, read.train, read.test, replace(job, fixed=fixed))


@lru_cache(maxsize=2)
def _read(name: str, data_dir: str) -> DataSet:
    return data.load(name, Path(data_dir) if data_dir else None)
