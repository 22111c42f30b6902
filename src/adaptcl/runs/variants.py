"""The main metric of a run's model in the three forms that a run could deliver.

*merged* is the latest global model, *fresh* the same with batch-norm statistics measured anew, and
*averaged* the mean of the latest models. A run delivers what `fresh_statistics` and `averaging`
say. Which form is best depends on the data and the recipe, so a run finds out for all three where
that costs next to nothing: at every test that 2 % of the training since the last one pay for.

Why average? With unequal data a single round can be bad: VGG16 on CIFAR-10 (s = 80, σ = 20) had
61 % in one test between two of 73 %. A mean over some rounds hardly notices, is usually a little
better than its models, and costs the workers nothing: they go on from the latest model, not from
the mean.

The mean covers a share of the rounds so far, because a model that still learns fast is better than
its past. The newest model has the weight 1 / (share × round) and older ones fade. So there is no
averaging in the first 1 / share rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Container

import torch

from adaptcl.config.config import Config
from adaptcl.data.samples import Items
from adaptcl.runs.workload import Workload
from adaptcl.storage import Tree
from adaptcl.strategies.strategy import Closed
from adaptcl.training.objectives.evaluation import USUAL_COUNT, FreshStatistics, Score
from adaptcl.units import State

USUAL_SHARE = 0.05
"""The share of the rounds so far that the mean covers: at the end of 150 rounds about seven."""

_FORMS = {(0.0, 0): "merged", (USUAL_SHARE, 0): "averaged", (0.0, USUAL_COUNT): "fresh"}
"""By `averaging` and `fresh_statistics`, what a run delivers."""
_PAID = 0.02  # the share of the training that may be spent
_STEP = 3  # a training step computes about three times as much as a forward pass


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


class Variants:
    """Measures the three forms of a run's model. Costs are counted in samples passed forward."""

    def __init__(
        self,
        config: Config,
        workload: Workload,
        test: Callable[[State], Score],
        *,
        whatever_it_costs: bool = False,
    ) -> None:
        samples = sum(map(len, workload.worker_samples))
        self._test = test
        self._model, self._samples = workload.model, workload.worker_samples
        self._is_slow_to_read = any(
            isinstance(each.inputs, Items) for each in workload.worker_samples
        )
        self._main = workload.objective.main.name
        self._mean = Averaging(USUAL_SHARE, workload.units.unchanging)
        self._fresh: FreshStatistics | None = None  # made when it is first needed
        asked = (config.job.averaging, config.fresh_statistics)
        self._delivered = _FORMS.get(asked)  # the form that the run delivers; None if another
        tests = 3 if self._delivered is None else 2
        spread = 0 if self._delivered == "fresh" else min(samples, USUAL_COUNT)
        self._cost = 0 if whatever_it_costs else tests * len(workload.test) + spread
        self._pay = _PAID * _STEP * config.recipe.epochs * samples / len(workload.worker_samples)
        self._saved = 0.0  # what the training since the last measurement has paid

    def add(self, state: State, closed: Closed) -> None:
        """Take the global model of a round."""
        self._mean.add(state, closed)
        self._saved += self._pay * sum(each.retention for each in closed.workers)

    def measure(self, latest: State, delivered: Score) -> dict[str, float]:
        """The main metric of each form of the latest model; empty if it is not paid for yet.

        `delivered` is the score of the model as the run would deliver it.
        """
        if self._saved < self._cost:
            return {}
        self._saved = 0.0
        forms: dict[str, Callable[[], State]] = {
            "merged": lambda: latest,
            "averaged": lambda: self._mean.model or latest,
        }
        if not self._is_slow_to_read:
            forms["fresh"] = lambda: self._with_fresh_statistics(latest)
        scores = {
            name: delivered if name == self._delivered else self._test(form())
            for name, form in forms.items()
        }
        return {name: each.metrics[self._main] for name, each in scores.items()}

    def _with_fresh_statistics(self, state: State) -> State:
        if self._fresh is None:
            self._fresh = FreshStatistics(self._model, self._samples, USUAL_COUNT)
        return self._fresh.of(state)

    def snapshot(self) -> Tree:
        return {"mean": self._mean.snapshot(), "saved": self._saved}

    def restore(self, tree: Tree) -> None:
        self._mean.restore(tree["mean"])
        self._saved = tree["saved"]
