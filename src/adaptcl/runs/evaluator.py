"""Tests the model of a run round by round, and decides which model the run delivers."""

from __future__ import annotations

from typing import Protocol

from adaptcl.config import JobSettings
from adaptcl.engines.loop import Evaluator
from adaptcl.runs.averaging import Averaging
from adaptcl.runs.workload import Workload
from adaptcl.storage import Tree
from adaptcl.strategies.strategy import Closed, Strategy
from adaptcl.training.evaluation import FreshStatistics, Judge, Score
from adaptcl.units import State


class RunEvaluator(Evaluator, Protocol):
    """Tests the model round by round, and says at the end which model the run delivers."""

    @property
    def tested(self) -> State:
        """The model that was tested last; empty before the first test."""
        ...

    def delivered(self, strategy: Strategy) -> State:
        """The model to deliver now."""
        ...

    def test(self, state: State) -> Score:
        """The accuracy of a model, also by class."""
        ...

    def snapshot(self) -> Tree:
        """All that `restore` needs to go on."""
        ...

    def restore(self, tree: Tree) -> None: ...


class TestSetEvaluator:
    """Tests on the server's test set: the mean of the latest models, with fresh statistics if the
    job asks for them."""

    def __init__(self, job: JobSettings, workload: Workload) -> None:
        self._every = job.evaluate_every
        self.tested: State = {}
        # Before workers train: building a judge may draw from a generator that they share.
        self._judge = Judge(workload.model, workload.test)
        self._averaging = Averaging(job.averaging, workload.units.constants)
        self._fresh = None
        if job.fresh_statistics:
            self._fresh = FreshStatistics(
                workload.model, workload.worker_samples, job.fresh_statistics
            )

    def judge(self, strategy: Strategy, closed: Closed, is_last: bool) -> float | None:
        model = self._averaging.add(strategy.model(), closed)
        if closed.round % self._every and not is_last:
            return None
        self.tested = self._with_statistics(model)
        return self.accuracy(self.tested)

    def delivered(self, strategy: Strategy) -> State:
        return self._with_statistics(self._averaging.model or strategy.model())

    def test(self, state: State) -> Score:
        return self._judge.test(state)

    def accuracy(self, state: State) -> float:
        return self._judge.accuracy(state)

    def snapshot(self) -> Tree:
        return self._averaging.snapshot()

    def restore(self, tree: Tree) -> None:
        self._averaging.restore(tree)

    def _with_statistics(self, state: State) -> State:
        return state if self._fresh is None else self._fresh.of(state)
