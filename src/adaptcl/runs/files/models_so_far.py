"""Listeners that keep the models of a run in its folder: the best, and the sub-models so far."""

from __future__ import annotations

from collections.abc import Sequence

from adaptcl.events import Event, RoundFinished
from adaptcl.records import RoundRecord
from adaptcl.runs.evaluator import RunEvaluator
from adaptcl.runs.files.folder import RunFolder
from adaptcl.runs.files.sub_models import SubModels
from adaptcl.strategies import Strategy
from adaptcl.training.objectives.metrics import Measure
from adaptcl.units import UnitMap
from adaptcl.units.cut import kept_key


class BestModel:
    """A listener that keeps the model of the best test in the run's folder."""

    def __init__(
        self,
        folder: RunFolder,
        evaluator: RunEvaluator,
        strategy: Strategy,
        records: Sequence[RoundRecord],
        measure: Measure,
    ) -> None:
        self._folder = folder
        self._evaluator = evaluator
        self._strategy = strategy
        self._measure = measure
        self._best = measure.worst
        for record in records:
            self._see(record.main_value)

    def _see(self, value: float | None) -> bool:
        """Whether a test is better than all before it."""
        if value is None or not self._measure.is_better(value, self._best):
            return False
        self._best = value
        return True

    def __call__(self, event: Event) -> None:
        if not isinstance(event, RoundFinished):
            return
        # The model of the last round is delivered. The best before it stays, for more rounds. But
        # where workers test, the last round's test is of the model before that.
        is_delivered = self._strategy.finished and not event.record.worker_values
        if not is_delivered and self._see(event.record.main_value):
            self._folder.save_best(self._evaluator.tested, event.record.round)


class CurrentSubModels:
    """A listener that keeps the workers' sub-models in the run's folder, for whoever watches it."""

    def __init__(self, folder: RunFolder, units: UnitMap, strategy: Strategy) -> None:
        self._folder = folder
        self._units = units
        self._strategy = strategy
        self._kept: list[bytes] = []

    def __call__(self, event: Event) -> None:
        if not isinstance(event, RoundFinished):
            return
        sub_models = self._strategy.sub_models()
        kept = [kept_key(each) for each in sub_models]
        if kept != self._kept:
            self._kept = kept
            self._folder.save_sub_models(SubModels.of(self._units, sub_models))
