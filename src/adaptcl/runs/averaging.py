"""The model that a run tests and delivers: the mean of its latest global models.

Single rounds of a job with unequal data can be bad ones: VGG16 on CIFAR-10 (s = 80, σ = 20) was at
61 % in one test between two of 73 %, and whoever stops there has bad luck. A mean over some rounds
hardly notices, is usually a little better than its models, and costs the workers nothing: they go
on from the latest model, not from the mean.

How many rounds is a share of those so far, because a model that still learns fast is better than
its past. The newest model has the weight 1 / (share × round) and older ones fade, so that in the
first 1 / share rounds there is no averaging at all.
"""

from __future__ import annotations

from collections.abc import Container

import torch

from adaptcl.storage import Tree
from adaptcl.strategies.strategy import Closed
from adaptcl.units import State

USUAL_SHARE = 0.05
"""Five per cent: the rounds that a run of 150 averages over are about seven."""


class Averaging:
    """A running mean of global models that forgets."""

    def __init__(self, share: float, constants: Container[str] = ()) -> None:
        """Over this share of the rounds so far; 0 is no averaging. Tensors named as `constants`
        have no mean."""
        self._share = share
        self._constants = constants
        self._model: State | None = None
        self._round = 0
        self._rounds = 0
        """Since sub-models last changed."""

    @property
    def model(self) -> State | None:
        """The mean; None where it is not known, because it is the global model itself."""
        return self._model

    def add(self, state: State, closed: Closed) -> State:
        """Take in the global model of a round; the mean, whose tensors nobody may write into.

        Models of before a pruning have units that were cut since, and the statistics of the round
        of a pruning are those of neither, so the mean begins anew behind it.
        """
        pruned = any(record.pruned_rate for record in closed.workers)
        self._rounds = 0 if pruned else self._rounds + 1
        self._round = closed.round
        window = min(self._rounds, self._share * closed.round)
        if window <= 1 or self._model is None:
            self._model = state
        else:
            # A mean from a checkpoint may be in another place than the models that follow it.
            self._model = {
                name: torch.lerp(self._model[name].to(tensor.device), tensor, 1 / window)
                if tensor.is_floating_point() and name not in self._constants
                else tensor
                for name, tensor in state.items()
            }
        return self._model

    def snapshot(self) -> Tree:
        """All that is needed to go on; the mean only where the next round needs it."""
        needed = self._share * (self._round + 1) > 1
        return {
            "model": self._model if needed else None,
            "round": self._round,
            "rounds": self._rounds,
        }

    def restore(self, tree: Tree) -> None:
        """Go on from a snapshot."""
        self._model = tree["model"]
        self._round = tree["round"]
        self._rounds = tree["rounds"]
