"""Balanced BNscalor: BN scales again, but no layer is emptied because all its scales are small.

Across layers the size of a BN scale says little: a few rounds of the group lasso pull all scales of
one layer a little lower than those of another, and a global order then cuts that whole layer before
it touches the next. Of a small ResNet it left 1 of the 256 channels of the last stage. So a unit is
measured against those of its own layer that would outlive it, as in LAMP (Lee et al. 2021, "Layer-
adaptive sparsity for the magnitude-based pruning"), there for single weights.
"""

from __future__ import annotations

import torch
from torch import Tensor

from adaptcl.pruning.cig_bnscalor import CIGBNscalor
from adaptcl.pruning.order import ServerView


class BalancedBNscalor:
    """The square of a unit's BN scale, relative to its layer's units that are at least as large.

    The sum of their squares stands for what of the layer is left when the unit goes, and its
    number of units makes layers of different width comparable. Where all scales of a layer are
    alike, the importance of a unit is one over the share of the layer that goes after it, so layers
    without differences all give the same share; units near zero go first wherever they are.
    """

    summary = "BN scales, each against the larger ones of its layer, so that all layers shrink"
    frozen = True

    def importance(self, view: ServerView) -> Tensor:
        """How much of what would be left of its layer each unit is, for layers of any width."""
        squares = CIGBNscalor().importance(view).double().square()
        importance = torch.zeros_like(squares)
        for layer in view.units.layers:
            numbers = torch.arange(layer.units.start, layer.units.stop)
            largest_first = numbers[squares[numbers].argsort(descending=True, stable=True)]
            left = squares[largest_first].cumsum(0)
            # Of a layer whose scales are all zero nothing is left to compare with.
            share = torch.where(left > 0, squares[largest_first] / left, 0.0)
            importance[largest_first] = len(numbers) * share
        return importance.float()
