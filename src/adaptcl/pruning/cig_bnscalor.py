"""CIG-BNscalor, the paper's own order: constant, identical and global.

The BN scales of the aggregated global model at the first pruning order the units of all layers,
for all workers and for ever after. The scales depend on no worker's data, and since they multiply
whole feature maps they can be compared across layers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from adaptcl.pruning.filters import Tally
from adaptcl.pruning.order import ServerView
from adaptcl.units import FIXED


class CIGBNscalor:
    """|BN scale| of a unit in the global model; the mean of them if it passes several batch norms.

    Units without batch norm have no scale. They get the L2 norm of all they own, relative to the
    mean of their layer, times the mean |BN scale| of the model (1 if it has none): a unit that is
    average in its layer then stands beside an average scale.
    """

    summary = "BN scales of the global model at the first pruning (the paper's own order)"
    frozen = True

    def importance(self, view: ServerView) -> Tensor:
        """|BN scale| of every unit, or what stands in for it."""
        scales = _scales(view)
        # Units without a scale get the mean of the others here, and their share of it below.
        return scales.means() * torch.where(scales.measured, 1.0, _relative_norms(view))


def _scales(view: ServerView) -> Tally:
    tally = Tally(view.units)
    for slot in view.units.slots:
        if slot.owned and slot.tensor in view.units.bn_scales:
            tally.add(slot.ids, view.state[slot.tensor].abs())
    return tally


def _relative_norms(view: ServerView) -> Tensor:
    """L2 norm of all trained entries a unit owns, divided by the mean of its layer."""
    squares = torch.zeros(view.units.count, dtype=torch.float64)
    for slot in view.units.slots:
        if slot.owned and slot.tensor in view.units.parameters:
            entries = view.state[slot.tensor].movedim(slot.dim, 0).reshape(len(slot.ids), -1)
            known = slot.ids != FIXED
            sums = torch.nan_to_num(entries.cpu().double().square().sum(1))
            squares.index_add_(0, slot.ids[known], sums[known])
    norms = squares.sqrt()
    for layer in view.units.layers:
        here = slice(layer.units.start, layer.units.stop)
        mean = norms[here].mean()
        norms[here] = norms[here] / mean if mean > 0 else 1.0
    return norms.float()


# Balanced BNscalor: BN scales again, but no layer is emptied because all its scales are small.
#
# Across layers the size of a BN scale says little: a few rounds of the group lasso pull all
# scales of one layer a little lower than those of another, and a global order then cuts that
# whole layer before it touches the next. Of a small ResNet it left 1 of the 256 channels of the
# last stage. So a unit is measured against those of its own layer that would outlive it, as in
# LAMP (Lee et al. 2021, "Layer- adaptive sparsity for the magnitude-based pruning"), there for
# single weights.


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
