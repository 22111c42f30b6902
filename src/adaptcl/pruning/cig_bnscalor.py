"""CIG-BNscalor, the order of the paper: constant, identical and global; and a balanced variant.

The BN scales of the global model at the first pruning rank the units of all layers, for all workers
and all later prunings. The scales depend on no worker's data. They multiply whole feature maps, so
they can be compared across layers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from adaptcl.pruning.order import Computed, ServerView, UnitMeans
from adaptcl.units import FIXED, State, UnitMap


class CIGBNscalor:
    """Units of all layers in one order, by their BN scales."""

    summary = "BN scales of the global model at the first pruning (the paper's own order)"
    computed: Computed = "once"

    def importance(self, view: ServerView) -> Tensor:
        return bn_importance(view.units, view.state)


def bn_importance(units: UnitMap, state: State) -> Tensor:
    """|BN scale| of a unit in a whole model, averaged if it passes several batch norms.

    A unit without batch norm has no scale. The L2 norm of the weights that read it stands in,
    relative to its layer's mean, times the mean |BN scale| of the model (1 if it has none). A unit
    that is average in its layer then ranks beside an average scale. `python -m benchmarks
    importance` holds this against other norms.
    """
    scales = UnitMeans(units)
    for slot in units.slots:
        if slot.owned and slot.tensor in units.bn_scales:
            scales.add(slot.ids, state[slot.tensor].abs())
    # `by_unit` gives units without a scale the mean of the others.
    return scales.by_unit() * torch.where(scales.measured, 1.0, _relative_norms(units, state))


def _relative_norms(units: UnitMap, state: State) -> Tensor:
    """L2 norm of the trained weights that read a unit, divided by the mean of its layer.

    In a layer that no weight reads it is the norm of what the unit owns.
    """
    norms = squares(units, state, owned=False).sqrt()
    owned = squares(units, state, owned=True).sqrt()
    for layer in units.layers:
        here = slice(layer.units.start, layer.units.stop)
        known = norms[here] if bool(norms[here].any()) else owned[here]
        mean = known.mean()
        norms[here] = known / mean if mean > 0 else 1.0
    return norms.float()


def squares(units: UnitMap, state: State, *, owned: bool) -> Tensor:
    """The sum of squares of all that a unit owns, or of all that reads it."""
    found = torch.zeros(units.count, dtype=torch.float64)
    for slot in units.slots:
        if slot.owned == owned and slot.tensor in units.parameters:
            entries = state[slot.tensor].movedim(slot.dim, 0).reshape(len(slot.ids), -1)
            known = slot.ids != FIXED
            sums = torch.nan_to_num(entries.cpu().double().square().sum(1))
            found.index_add_(0, slot.ids[known], sums[known])
    return found


class BalancedBNscalor:
    """BN scales again, but no layer is emptied because all its scales are small.

    A few rounds of group lasso pull all scales of one layer a little below those of another. A
    global order then cuts that whole layer before it touches the next: of the last stage of a small
    ResNet it left 1 of 256 channels. So a unit is compared with the units of its layer that outlive
    it, as LAMP does for single weights (Lee et al. 2021, "Layer-adaptive sparsity for the
    magnitude-based pruning").

    The importance is the square of a unit's scale, divided by the sum of squares of the units that
    are at least as large, times the number of units of the layer. That sum is what is left of the
    layer when the unit is cut; the number makes layers of different width comparable. Layers whose
    scales do not differ then all lose the same share, and units near zero are cut first anywhere.
    """

    summary = "BN scales, each against the larger ones of its layer, so that all layers shrink"
    computed: Computed = "once"

    def importance(self, view: ServerView) -> Tensor:
        return balanced(view.units, bn_importance(view.units, view.state))


def balanced(units: UnitMap, scales: Tensor) -> Tensor:
    """Compare each unit with the units of its layer that outlive it."""
    squares = scales.double().square()
    importance = torch.zeros_like(squares)
    for layer in units.layers:
        numbers = torch.arange(layer.units.start, layer.units.stop)
        largest_first = numbers[squares[numbers].argsort(descending=True, stable=True)]
        left = squares[largest_first].cumsum(0)
        # In a layer whose scales are all zero there is nothing to compare with.
        share = torch.where(left > 0, squares[largest_first] / left, 0.0)
        importance[largest_first] = len(numbers) * share
    return importance.float()
