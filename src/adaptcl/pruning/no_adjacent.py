"""*No adjacent*: one random order, identical for all workers and constant over time.

Takes adjacency away from *Index* and leaves the rest: the paper finds that it learns as well, so
adjacency does not matter.
"""

from __future__ import annotations

import torch
from torch import Tensor

from adaptcl.pruning.order import ServerView
from adaptcl.seeds import generator


class NoAdjacent:
    """A random order of the units of each layer, drawn from the run's seed alone."""

    summary = "one random order, identical for all workers and constant"
    frozen = False

    def importance(self, view: ServerView) -> Tensor:
        """The values of *Index*, shuffled within each layer so that layers shrink as there."""
        dice = generator(view.seed, "no-adjacent")
        importance = torch.ones(view.units.count)
        for layer in view.units.layers:
            width = len(layer.units)
            position = torch.randperm(width, generator=dice)
            importance[layer.units.start : layer.units.stop] = 1 - position / width
        return importance
