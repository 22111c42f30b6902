"""Tests the model of a run round by round, and decides which model the run delivers.

That model is a running mean of the latest global models. With unequal data a single round can be
bad: VGG16 on CIFAR-10 (s = 80, σ = 20) had 61 % in one test between two of 73 %. A mean over some
rounds hardly notices, is usually a little better than its models, and costs the workers nothing:
they go on from the latest model, not from the mean.

The mean covers a share of the rounds so far, because a model that still learns fast is better than
its past. The newest model has the weight 1 / (share × round) and older ones fade. So there is no
averaging in the first 1 / share rounds.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Protocol

import torch

from adaptcl.config import Config
from adaptcl.engines.loop import Evaluator
from adaptcl.runs.workload import Workload
from adaptcl.storage import Tree
from adaptcl.strategies.strategy import Closed, Strategy
from adaptcl.training.evaluation import FreshStatistics, Judge, Score
from adaptcl.units import State

USUAL_SHARE = 0.05
"""Five per cent: at the end of 150 rounds the mean covers about seven."""


class Averaging:
    """A running mean of global models in which older models fade."""

    def __init__(self, share: float, unchanging: Container[str] = ()) -> None:
        """Average over this share of the rounds so far; 0 switches it off. Tensors named in
        `unchanging` are never averaged."""
        self._share = share
        self._unchanging = unchanging
        self._model: State | None = None
        self._round = 0
        self._rounds = 0
        """Rounds since sub-models last changed."""

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


class RunEvaluator(Evaluator, Protocol):
    """Tests the model round by round, and says at the end which model the run delivers."""

    @property
    def tested(self) -> State:
        """The model that was tested last; empty before the first test."""
        ...

    def delivered(self, strategy: Strategy) -> State:
        """The model to deliver now."""
        ...

    def final_score(self, delivered: State) -> Score:
        """The score of the model that the run delivers."""
        ...

    def snapshot(self) -> Tree:
        """All that `restore` needs to go on."""
        ...

    def restore(self, tree: Tree) -> None: ...


class TestSetEvaluator:
    """Tests on the server's test set: the mean of the latest models, with fresh statistics if the
    job or the strategy asks for them."""

    def __init__(self, config: Config, workload: Workload) -> None:
        job = config.job
        self._every = job.evaluate_every
        self.tested: State = {}
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
