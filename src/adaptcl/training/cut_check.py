"""Whether a worker that was told to prune has cut what it was told to cut.

A sub-model that is smaller than asked comes back with the next update and can only be pruned
further, so a worker that cuts at will could empty the model. Where the server sent the importance
of the units, the cut follows from the task: the numbers that were sent are sorted and parameters
are counted, with the same outcome on every machine. Where the worker orders the units by its own
data, nobody else knows which of them go, but it is known how far the pruning goes, to within one
block of units. To cut less than asked costs nothing but time and is not refused then.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from adaptcl.errors import UpdateError
from adaptcl.pruning import prune
from adaptcl.pruning.widths import blocks
from adaptcl.training.task import Pruning
from adaptcl.units import FIXED, Kept, UnitMap, cut_shapes, parameters

_ROUNDING = 1e-9
"""Relative room for the rounding errors of what is compared with a whole number here."""


def check_cut(who: str, before: Kept, after: Kept, told: Pruning, units: UnitMap) -> None:
    """Refuse kept units that the pruning cannot have left of those `before`."""
    if told.importance is not None:
        expected = prune(
            units, before, told.importance, told.rate, told.min_retention, told.width_multiple
        )
        if not torch.equal(after, expected):
            raise UpdateError(
                f"{who} kept {int(after.sum())} units, which are not the {int(expected.sum())} "
                "that the pruning it was told to do leaves."
            )
        return
    left, fewest = parameters(units, after), fewest_parameters(units, before, told)
    if left < fewest * (1 - _ROUNDING):
        raise UpdateError(
            f"{who} was told to prune {told.rate:.1%} and cut away far more: of "
            f"{parameters(units, before)} parameters it kept {left}, and at least "
            f"{math.ceil(fewest)} stay."
        )


def fewest_parameters(units: UnitMap, kept: Kept, told: Pruning) -> float:
    """What a pruning of the units `kept` leaves at least, in whatever order they go.

    Blocks of units go until the rest fits the budget, and the last of them may take more than was
    missing. Where that falls below the retention γ_min, it stays, and the rest is over the budget.
    """
    budget = (1 - told.rate) * parameters(units, kept)
    least = told.min_retention * parameters(units, units.everything())
    return max(budget - _largest_block(units, kept, told.width_multiple), min(budget, least))


def _largest_block(units: UnitMap, kept: Kept, width_multiple: int) -> float:
    """No block that is cut from the units `kept` or fewer has more parameters than this.

    The units of a layer need not be equal: a later layer may read only some of them.
    """
    costs = torch.where(kept, _costs(units, kept), 0.0)
    largest = 0.0
    for layer, size in zip(units.layers, blocks(units, width_multiple).tolist(), strict=True):
        here = costs[layer.units.start : layer.units.stop]
        largest = max(largest, float(here.topk(min(size, len(here))).values.sum()))
    return largest


def _costs(units: UnitMap, kept: Kept) -> Tensor:
    """How many parameters go with each unit; those that go with two units count for both."""
    shapes = cut_shapes(units, kept)
    costs = torch.zeros(units.count, dtype=torch.float64)
    for slot in units.slots:
        if slot.tensor in units.parameters:
            shape = shapes[slot.tensor]
            others = math.prod(shape) // shape[slot.dim]
            known = slot.ids[slot.ids != FIXED]
            costs.index_add_(0, known, torch.full((len(known),), float(others)).double())
    return costs
