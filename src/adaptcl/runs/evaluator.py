"""Tests the model of a run round by round, and decides which model the run delivers.

The server tests on its test set, or the workers test on samples that they hold back.

With `averaging` above 0 the delivered model is a running mean of the latest global models. With
unequal data a single round can be bad: VGG16 on CIFAR-10 (s = 80, σ = 20) had 61 % in one test
between two of 73 %. A mean over some rounds hardly notices, is usually a little better than its
models, and costs the workers nothing: they go on from the latest model, not from the mean.

The mean covers a share of the rounds so far, because a model that still learns fast is better than
its past. The newest model has the weight 1 / (share × round) and older ones fade. So there is no
averaging in the first 1 / share rounds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Mapping, Sequence

import torch

from adaptcl.config.config import Config
from adaptcl.errors import SettingError
from adaptcl.runs.workload import Workload
from adaptcl.storage import Tree
from adaptcl.strategies.strategy import Closed, Strategy
from adaptcl.training import Task, Update
from adaptcl.training.objectives.evaluation import FreshStatistics, Judge, Score, merged_score
from adaptcl.training.task import WorkerTest
from adaptcl.units import State

_AFTER_ALL_ROUNDS = 2**31
"""The round of the last test; without a barrier a worker may have more rounds than the run."""


class Averaging:
    """A running mean of global models in which older models fade."""

    def __init__(self, share: float, unchanging: Container[str] = ()) -> None:
        """Average over this share of the rounds so far; 0 switches it off. Tensors named in
        `unchanging` are never averaged."""
        self._share = share
        self._unchanging = unchanging
        self._model: State | None = None
        self._round = 0
        self._rounds = 0  # rounds since sub-models last changed

    @property
    def model(self) -> State | None:
        """The mean; None if it is just the global model."""
        return self._model

    def add(self, state: State, closed: Closed) -> State:
        """Add the global model of a round and return the mean, whose tensors must not be changed.

        Models from before a pruning have units that are cut now, and the statistics of the pruning
        round fit neither model. So the mean starts again after a pruning.
        """
        pruned = any(record.pruned_rate for record in closed.workers)
        self._rounds = 0 if pruned else self._rounds + 1
        self._round = closed.round
        window = min(self._rounds, self._share * closed.round)
        if window <= 1 or self._model is None:
            self._model = state
        else:
            # A mean from a checkpoint may be on another device than the next models.
            self._model = {
                name: torch.lerp(self._model[name].to(tensor.device), tensor, 1 / window)
                if tensor.is_floating_point() and name not in self._unchanging
                else tensor
                for name, tensor in state.items()
            }
        return self._model

    def snapshot(self) -> Tree:
        """All that `restore` needs; the mean only if the next round uses it."""
        needed = self._share * (self._round + 1) > 1
        return {
            "model": self._model if needed else None,
            "round": self._round,
            "rounds": self._rounds,
        }

    def restore(self, tree: Tree) -> None:
        self._model = tree["model"]
        self._round = tree["round"]
        self._rounds = tree["rounds"]


class TestSetEvaluator:
    """Tests on the server's test set: the mean of the latest models, with fresh statistics if the
    job or the strategy asks for them."""

    def __init__(self, config: Config, workload: Workload) -> None:
        job = config.job
        self._every = job.evaluate_every
        self.tested: State = {}  # the model that was tested last; empty before the first test
        # Before workers train: building a judge may draw from a generator that they share.
        self._judge = Judge(workload.model, workload.test, workload.objective)
        self._averaging = Averaging(job.averaging, workload.units.unchanging)
        self._fresh = None
        if config.fresh_statistics:
            self._fresh = FreshStatistics(
                workload.model, workload.worker_samples, config.fresh_statistics
            )

    def judge(self, strategy: Strategy, closed: Closed, is_last: bool) -> Score | None:
        model = self._averaging.add(strategy.model(), closed)
        if closed.round % self._every and not is_last:
            return None
        self.tested = self._with_statistics(model)
        return self.test(self.tested)

    def delivered(self, strategy: Strategy) -> State:
        """The model to deliver now."""
        return self._with_statistics(self._averaging.model or strategy.model())

    def final_score(self, delivered: State) -> Score:
        return self.test(delivered)

    def test(self, state: State) -> Score:
        return self._judge.test(state)

    def snapshot(self) -> Tree:
        return self._averaging.snapshot()

    def restore(self, tree: Tree) -> None:
        self._averaging.restore(tree)

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
