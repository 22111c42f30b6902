"""The budget: from a pruned rate and an importance order to the units that stay.

Retention γ is the fraction of the model's *parameters* that are kept. Units are cut in order of
importance, least important first, until the rest fits the budget. The most important unit of every
layer stays, because a layer without units is no layer. With one order for all workers, two budgets
always give nested sub-models: the smaller is contained in the larger.

Widths can be rounded to multiples that suit the hardware. A layer then loses its units a block at a
time: units that the order selects stay until a whole block is selected. The order of the layers and
of the units, and the nesting of sub-models, stay the same.
"""

from __future__ import annotations

import torch
from torch import Tensor

from adaptcl.units import FIXED, Kept, UnitMap, parameters, retention

_MOST_OF_MODEL = 0.02
"""A block has at most this share of the model's parameters: the default ρ_min, the finest step
of pruned-rate learning."""

_MOST_OF_LAYER = 0.25
"""A block has at most this share of its layer's units, so that the layer can be cut at all."""

_ROUNDING = 1e-9
"""Relative tolerance for a budget that was computed from a rate: half a sub-model's parameters may
come out slightly below the whole number they are."""


def block_sizes(units: UnitMap, multiple: int) -> Tensor:
    """How many units of each layer are cut together: `multiple`, halved until it is fine enough.

    Tensor cores and vector registers process channels in blocks. A width that is no multiple of the
    block costs as much as the next multiple, and often more, because a slower kernel runs: on a GPU
    a sub-model of half the parameters and odd widths takes longer to train than the whole model.
    But a block that is a large part of a model makes pruning coarse: workers then miss the size
    that would make them equally fast, which costs more than the block saves. So narrow layers and
    small models get smaller blocks. A unit of several channels, such as a head of attention, is a
    block or a part of one already.
    """
    if multiple == 1:
        return torch.ones(len(units.layers), dtype=torch.int64)
    whole = parameters(units, units.everything())
    channels = _channels(units)
    chosen = []
    for layer in units.layers:
        others = units.everything()
        others[layer.units.start] = False
        unit_share = (whole - parameters(units, others)) / whole
        block = max(1, multiple // int(channels[layer.units.start]))
        while block > 1 and (
            block * unit_share > _MOST_OF_MODEL or block > _MOST_OF_LAYER * len(layer.units)
        ):
            block //= 2
        chosen.append(block)
    return torch.tensor(chosen, dtype=torch.int64)


def _channels(units: UnitMap) -> Tensor:
    """How many channels each unit has, where it has fewest."""
    fewest = torch.full((units.count,), torch.iinfo(torch.int64).max)
    for slot in units.slots:
        count = torch.bincount(slot.ids[slot.ids != FIXED], minlength=units.count)
        fewest = torch.where(count > 0, torch.minimum(fewest, count), fewest)
    return fewest


def fit(
    units: UnitMap, among: Kept, importance: Tensor, budget: float, width_multiple: int = 1
) -> Kept:
    """The largest sub-model of the units `among` that has at most `budget` parameters.

    It is the largest along the order: as few units as possible are cut, least important first. If
    one unit (or block) per layer still exceeds the budget, the result is that smallest sub-model.
    """
    descent = _Descent(units, among, importance, width_multiple)
    return descent.after(descent.fewest_cuts(budget))


def prune(
    units: UnitMap,
    kept: Kept,
    importance: Tensor,
    rate: float,
    min_retention: float = 0.0,
    width_multiple: int = 1,
) -> Kept:
    """Cut a sub-model by a pruned rate P: it keeps at most (1 − P) of its parameters.

    Units (or blocks) are cut only while the retention stays at least γ_min (`min_retention`); that
    may be none at all.
    """
    descent = _Descent(units, kept, importance, width_multiple)
    least = min_retention * parameters(units, units.everything())
    budget = max((1.0 - rate) * parameters(units, kept), least)
    cuts = descent.fewest_cuts(budget)
    left = descent.after(cuts)
    if cuts > 0 and retention(units, left) < min_retention:
        return descent.after(cuts - 1)
    return left


def achieved_rate(units: UnitMap, before: Kept, after: Kept, rate: float) -> float:
    """How much of a pruned rate a pruning achieved: usually all of it.

    Units and blocks are whole, so a little more is cut than asked. If γ_min stopped the pruning
    early, this is the share that was cut, down to 0.
    """
    whole, left = parameters(units, before), parameters(units, after)
    if left < whole and left <= (1.0 - rate) * whole * (1 + _ROUNDING):
        return rate
    return 1 - left / whole


def smallest_retention(units: UnitMap, width_multiple: int = 1) -> float:
    """The retention that no pruning gets below: one unit (or block) of each layer is left."""
    everything = units.everything()
    return retention(units, fit(units, everything, torch.arange(units.count), 0.0, width_multiple))


def grow(
    units: UnitMap, kept: Kept, importance: Tensor, budget: float, width_multiple: int = 1
) -> Kept:
    """The largest sub-model of at most `budget` parameters that contains the units `kept`.

    The most important of the missing units come back first. All `kept` units stay, even if they
    alone exceed the budget: growing never cuts.
    """
    first_to_go = _least_important_first(units.everything(), importance)
    rank = torch.empty_like(first_to_go)
    rank[first_to_go] = torch.arange(units.count)
    kept_last = rank + units.count * kept
    return fit(units, units.everything(), kept_last, budget, width_multiple) | kept


def importance_lost(before: Kept, after: Kept, importance: Tensor) -> float:
    """The share of a sub-model's importance that a pruning removed, from 0 to 1."""
    total = float(importance[before].sum())
    return float(importance[before & ~after].sum()) / total if total > 0 else 0.0


class _Descent:
    """The nested sub-models of an order, from all units `among` down to one block per layer.

    Pruning one of them further by the same order gives another one of them.
    """

    def __init__(
        self, units: UnitMap, among: Kept, importance: Tensor, width_multiple: int
    ) -> None:
        self._units = units
        self._among = among
        self._blocks = block_sizes(units, width_multiple)
        widths = torch.tensor([len(layer.units) for layer in units.layers], dtype=torch.int64)
        self._layer = torch.repeat_interleave(widths)  # the layer each unit is in
        first_to_go = _least_important_first(among, importance)
        self._present = self._by_layer(first_to_go)
        self._rank = self._ranks(first_to_go)
        """The rank of each unit in its layer, 0 for the most important."""
        self._candidates = first_to_go[self._rank[first_to_go] > 0]

    def fewest_cuts(self, budget: float) -> int:
        """The smallest number of cuts after which the rest fits the budget."""
        limit = budget * (1 + _ROUNDING)
        low, high = 0, len(self._candidates)
        while low < high:
            middle = (low + high) // 2
            if parameters(self._units, self.after(middle)) <= limit:
                high = middle
            else:
                low = middle + 1
        return low

    def after(self, cuts: int) -> Kept:
        """The sub-model without the first `cuts` candidates, its widths rounded up."""
        left = self._present - self._by_layer(self._candidates[:cuts])
        # This may exceed the width of a layer, which need not be a multiple of the block.
        widths = (left + self._blocks - 1) // self._blocks * self._blocks
        return self._among & (self._rank < widths[self._layer])

    def _by_layer(self, numbers: Tensor) -> Tensor:
        """How many of these units each layer has."""
        return torch.bincount(self._layer[numbers], minlength=len(self._units.layers))

    def _ranks(self, first_to_go: Tensor) -> Tensor:
        best_first = first_to_go.flip(0)
        layer_by_layer = best_first[self._layer[best_first].argsort(stable=True)]
        begins = self._present.cumsum(0) - self._present
        ranks = torch.zeros_like(self._layer)
        ranks[layer_by_layer] = (
            torch.arange(len(layer_by_layer)) - begins[self._layer[layer_by_layer]]
        )
        return ranks


def _least_important_first(among: Kept, importance: Tensor) -> Tensor:
    """The numbers of the units `among`; of equally important ones, the highest number first.

    Units whose importance is NaN come before all others.
    """
    importance = importance.double()
    importance = torch.where(importance.isnan(), -torch.inf, importance)
    numbers = among.nonzero().flatten().flip(0)
    return numbers[importance[numbers].argsort(stable=True)]
