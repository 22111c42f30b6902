"""Checkpoints: when a run saves one, what is in it, and how the run goes on from there."""

from __future__ import annotations

import time
from collections.abc import Sequence

from adaptcl.config.job import JobSettings
from adaptcl.engines.stop_rule import StopRule
from adaptcl.records import RoundRecord
from adaptcl.runs.evaluator import RunEvaluator
from adaptcl.runs.files.folder import RunFolder
from adaptcl.runs.resumption import can_be_extended
from adaptcl.storage import Tree
from adaptcl.strategies import Strategy


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
