"""What a run keeps while it goes on: a checkpoint, the best model and the sub-models so far."""

from __future__ import annotations

import time
from collections.abc import Sequence

from adaptcl.config.job import JobSettings
from adaptcl.engines.stop_rule import StopRule
from adaptcl.events import Event, RoundFinished
from adaptcl.records import RoundRecord
from adaptcl.runs.evaluator import RunEvaluator
from adaptcl.runs.files.folder import RunFolder
from adaptcl.runs.files.sub_models import SubModels
from adaptcl.runs.resumption import can_be_extended
from adaptcl.storage import Tree
from adaptcl.strategies import Strategy
from adaptcl.training.objectives.metrics import Measure
from adaptcl.units import UnitMap


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
        self._retention: dict[int, float] = {}

    def __call__(self, event: Event) -> None:
        if not isinstance(event, RoundFinished):
            return
        # A width that changes changes the retention.
        found = {each.worker: each.retention for each in event.record.workers}
        if not found.items() <= self._retention.items():
            self._retention |= found
            self._folder.save_sub_models(SubModels.of(self._units, self._strategy.sub_models()))


class Checkpoints:
    """Saves the checkpoints of a run that has a folder, and goes on from one."""

    def __init__(
        self,
        job: JobSettings,
        strategy: Strategy,
        folder: RunFolder | None,
        evaluator: RunEvaluator,
        stop_rule: StopRule,
    ) -> None:
        self._strategy = strategy
        self._job = job
        self._folder = folder
        self._evaluator = evaluator
        self._stop_rule = stop_rule
        self._began = time.perf_counter()
        self._rounds = 0  # rounds that have closed
        self.extendable = False
        """Whether a run of more rounds could go on from the last checkpoint."""

    def wall_time(self) -> float:
        return time.perf_counter() - self._began

    def save(self, loop: Tree) -> None:
        """Save the run after a round, if it is this round's turn."""
        self._rounds += 1
        if self._folder is None or self._rounds % self._job.checkpoint_every:
            return
        if self._strategy.finished and self.extendable:
            return  # more rounds go on from the checkpoint before
        self.extendable = can_be_extended(self._folder.path, self._strategy, self._job.strategy)
        self._folder.save_checkpoint(
            {
                "may_go_further": self.extendable,
                "stopped_by": self._stop_rule.stopped_by,
                "wall_time_s": self.wall_time(),
                "evaluator": self._evaluator.snapshot(),
                "loop": loop,
            }
        )

    def restore(self, tree: Tree, records: Sequence[RoundRecord]) -> None:
        """Go on from a checkpoint after these rounds; the loop's part is the loop's to restore."""
        self._began -= tree["wall_time_s"]
        self._rounds = len(records)
        self.extendable = bool(tree["may_go_further"])
        self._stop_rule.restore(records, tree["stopped_by"])
        self._evaluator.restore(tree["evaluator"])
