"""Merges what the workers found when they tested the model where their data are.

Each worker holds samples back and tests the model that it is sent, before it trains. So the record
of a round is about the models that were sent in this round: for AdaptCL each worker's sub-model,
which is what the worker can use. When the run is over, all workers test the whole model that it
delivers, and the summary is about that one. The server never sees a sample.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from adaptcl.config import Config
from adaptcl.errors import SettingError
from adaptcl.runs.evaluator import Averaging
from adaptcl.runs.workload import Workload
from adaptcl.storage import Tree
from adaptcl.strategies.strategy import Closed, Strategy
from adaptcl.training import Task, Update
from adaptcl.training.evaluation import Score, merged_score
from adaptcl.training.task import WorkerTest
from adaptcl.units import State

_AFTER_ALL_ROUNDS = 2**31
"""The round of the last test; without a barrier a worker may have more rounds than the run."""


class WorkerEvaluator:
    """Takes the workers' tests from the records of a round, and asks for the last ones."""

    def __init__(self, config: Config, workload: Workload) -> None:
        self._job = config.job
        self._recipe = config.recipe
        self._objective = workload.objective
        self._units = workload.units
        self._averaging = Averaging(config.job.averaging, workload.units.constants)
        self.tested: State = {}
        self._sent: State = {k: v.clone() for k, v in workload.model.state_dict().items()}
        """The global model that workers test in the round that is running."""
        self._tests: Mapping[int, WorkerTest] = {}
        """Those of the latest round that was tested."""
        self._last: dict[int, WorkerTest] = {}
        """Those of the model that the run delivers."""

    def judge(self, strategy: Strategy, closed: Closed, is_last: bool) -> Score | None:
        model = strategy.model()
        self._averaging.add(model, closed)
        self.tested, self._sent = self._sent, model
        # Of several updates of a worker the latest counts.
        found = {each.worker: each.test for each in closed.workers}
        tests = {worker: test for worker, test in found.items() if test is not None}
        if not tests:
            return None
        self._tests = tests
        return merged_score(tests, self._objective)

    def delivered(self, strategy: Strategy) -> State:
        return self._averaging.model or strategy.model()

    def tasks(self, strategy: Strategy) -> Sequence[Task]:
        state, everything = self.delivered(strategy), self._units.everything()
        return [
            Task(worker, _AFTER_ALL_ROUNDS, state, everything, self._recipe, only_tests=True)
            for worker in range(self._job.workers)
        ]

    def take(self, update: Update) -> None:
        if update.test is not None:
            self._last[update.worker] = update.test

    def final_score(self, delivered: State) -> Score:
        """Of the last tests; if nobody could make one, those of the last round stand in."""
        return merged_score(self._last or self._tests, self._objective)

    def snapshot(self) -> Tree:
        return {
            "averaging": self._averaging.snapshot(),
            "sent": self._sent,
            "tests": [[w, dataclasses.asdict(test)] for w, test in self._tests.items()],
        }

    def restore(self, tree: Tree) -> None:
        self._averaging.restore(tree["averaging"])
        self._sent = tree["sent"]
        self._tests = {worker: WorkerTest(**test) for worker, test in tree["tests"]}


def refuse_tests_at_the_server(config: Config) -> None:
    """An error for settings that need samples where there are none."""
    if config.fresh_statistics:
        asked = "fresh_statistics" if config.job.fresh_statistics else "static_batch_norm"
        raise SettingError(
            f"{asked} measures statistics on samples at the server, but here only workers have "
            "samples and test the model; switch it off, or give test data."
        )
