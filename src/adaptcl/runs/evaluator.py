"""Tests the model of a run round by round, and decides which model the run delivers.

The server tests on its test set, or the workers test on samples that they hold back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from torch import nn

from adaptcl.config.config import Config
from adaptcl.engines.loop import LastTest
from adaptcl.errors import SettingError
from adaptcl.runs.files.sub_models import SubModels
from adaptcl.runs.variants import Averaging, Variants
from adaptcl.runs.workload import Workload
from adaptcl.storage import Tree
from adaptcl.strategies.strategy import Closed, Strategy
from adaptcl.training import Task, Update
from adaptcl.training.objectives.evaluation import FreshStatistics, Judge, Score, merged_score
from adaptcl.training.task import WorkerTest
from adaptcl.units import State

_MOST_MEASURED = 100
"""Of more different sub-models none is measured at the end, because that may take long."""


class TestSetEvaluator:
    """Tests on the server's test set: the mean of the latest models, with fresh statistics if the
    job or the strategy asks for them."""

    def __init__(self, config: Config, workload: Workload, *, all_variants: bool = False) -> None:
        """`all_variants` measures every form of the model in every test, whatever that costs."""
        job = config.job
        self._every = job.evaluate_every
        self.tested: State = {}  # the model that was tested last; empty before the first test
        # Before workers train: building a judge may draw from a generator that they share.
        self._judge = Judge(workload.model, workload.test, workload.objective)
        self._averaging = Averaging(job.averaging, workload.units.unchanging)
        self._workload, self._count = workload, config.fresh_statistics
        self._fresh = self._measuring(workload.model) if config.fresh_statistics else None
        self._variants = Variants(config, workload, self.test, whatever_it_costs=all_variants)

    def judge(self, strategy: Strategy, closed: Closed, is_last: bool) -> Score | None:
        latest = strategy.model()
        self._variants.add(latest, closed)
        model = self._averaging.add(latest, closed)
        if closed.round % self._every and not is_last:
            return None
        self.tested = self._with_statistics(model)
        score = self.test(self.tested)
        return dataclasses.replace(score, variants=self._variants.measure(latest, score))

    def delivered(self, strategy: Strategy) -> State:
        """The model to deliver now."""
        return self._with_statistics(self._averaging.model or strategy.model())

    def with_statistics(self, sub_models: SubModels, delivered: State) -> SubModels:
        """Sub-models with statistics of their own, if the delivered model has fresh ones."""
        if self._fresh is None or len(sub_models.distinct) > _MOST_MEASURED:
            return sub_models
        return sub_models.measured(
            self._workload.model_with(delivered),
            lambda smaller: self._measuring(smaller).measured(smaller.state_dict()),
        )

    def _measuring(self, model: nn.Module) -> FreshStatistics:
        return FreshStatistics(model, self._workload.worker_samples, self._count)

    def final_score(self, delivered: State) -> Score:
        return self.test(delivered)

    def test(self, state: State) -> Score:
        return self._judge.test(state)

    def snapshot(self) -> Tree:
        return {**self._averaging.snapshot(), "variants": self._variants.snapshot()}

    def restore(self, tree: Tree) -> None:
        self._averaging.restore(tree)
        self._variants.restore(tree["variants"])

    def _with_statistics(self, state: State) -> State:
        return state if self._fresh is None else self._fresh.of(state)


class WorkerEvaluator:
    """Merges the tests that workers make on samples they hold back. The server sees no sample.

    A worker tests the model that it is sent, before it trains. So the record of a round is about
    the models sent in that round: for AdaptCL each worker's sub-model, which is what the worker can
    use. When the run is over, all workers test the whole model that it delivers, and the summary is
    about that one.
    """

    def __init__(self, config: Config, workload: Workload) -> None:
        self._job = config.job
        self._recipe = config.recipe
        self._objective = workload.objective
        self._units = workload.units
        self._averaging = Averaging(config.job.averaging, workload.units.unchanging)
        self.tested: State = {}
        self._sent: State = {k: v.clone() for k, v in workload.model.state_dict().items()}
        """The global model that workers test in the round that is running."""
        self._tests: Mapping[int, WorkerTest] = {}  # those of the latest round that was tested
        self._last: dict[int, WorkerTest] = {}  # those of the model that the run delivers

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

    def last_test(self, strategy: Strategy) -> LastTest:
        """Has all workers test the model that the run delivers."""
        state, everything = self.delivered(strategy), self._units.everything()
        after_all = strategy.rounds + 1
        tasks = [
            Task(worker, after_all, state, everything, self._recipe, only_tests=True)
            for worker in range(self._job.workers)
        ]
        return LastTest(tasks, self._take)

    def _take(self, update: Update) -> None:
        if update.test is not None:
            self._last[update.worker] = update.test

    def with_statistics(self, sub_models: SubModels, delivered: State) -> SubModels:
        """The same: what is delivered has the merged statistics, too."""
        return sub_models

    def final_score(self, delivered: State) -> Score:
        """Of the last tests; if nobody could make one, those of the last round stand in."""
        return merged_score(self._last or self._tests, self._objective)

    def snapshot(self) -> Tree:
        return {
            **self._averaging.snapshot(),
            "sent": self._sent,
            "tests": [[w, dataclasses.asdict(test)] for w, test in self._tests.items()],
        }

    def restore(self, tree: Tree) -> None:
        self._averaging.restore(tree)
        self._sent = tree["sent"]
        self._tests = {worker: WorkerTest(**test) for worker, test in tree["tests"]}


RunEvaluator = TestSetEvaluator | WorkerEvaluator


def refuse_tests_at_the_server(config: Config) -> None:
    """An error for settings that need samples where there are none."""
    if config.fresh_statistics:
        asked = "fresh_statistics" if config.job.fresh_statistics else "static_batch_norm"
        raise SettingError(
            f"{asked} measures statistics on samples at the server, but here only workers have "
            "samples and test the model; switch it off, or give test data."
        )
