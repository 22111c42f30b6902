"""Hardware-friendly widths: each layer keeps or gives up its units in whole blocks.

Tensor cores and vector registers take channels in blocks. A width that is no multiple of the block
costs as much as the next multiple, and often more, because the kernels made for whole blocks do
not fit and a slower one runs: on a GPU a sub-model of half the parameters and odd widths takes
longer to train than the whole model. But a block that is a large part of a model makes a coarse
tool of pruning: workers then end well beside the size that would make them equally fast, which
costs more than the block saves. So the blocks of narrow layers and of small models are smaller.
"""

from __future__ import annotations

import torch
from torch import Tensor

from adaptcl.units import Kept, UnitMap, parameters, retention

_MOST_OF_MODEL = 0.02
"""A block has at most this share of the model's parameters: as fine as pruned-rate learning is,
by its default ρ_min."""

_MOST_OF_LAYER = 0.25
"""A block has at most this share of its layer's units, so that the layer can be cut at all."""


def blocks(units: UnitMap, multiple: int) -> Tensor:
    """How many units of each layer go together: the multiple, halved until a block is fine enough.

    Each layer's width is then a multiple of its block, or what it was from the beginning.
    """
    if multiple == 1:
        return torch.ones(len(units.layers), dtype=torch.int64)
    whole = parameters(units, units.everything())
    chosen = []
    for layer in units.layers:
        others = units.everything()
        others[layer.units.start] = False
        of_a_unit = (whole - parameters(units, others)) / whole
        block = multiple
        while block > 1 and (
            block * of_a_unit > _MOST_OF_MODEL or block > _MOST_OF_LAYER * len(layer.units)
        ):
            block //= 2
        chosen.append(block)
    return torch.tensor(chosen, dtype=torch.int64)


# How much is cut: from a pruned rate and an importance order to the units that stay.
#
# Retention γ is the fraction of the model's *parameters* that are kept. Units go in order of
# importance, least important first, until what is left fits the budget; the most important unit
# of every layer is never cut, because a layer without units is no layer. With one order for
# everybody, two budgets always give nested sub-models: the smaller is contained in the larger.
#
# Widths can be rounded to multiples that suit the hardware (`widths.py`). A layer then gives up
# its units a block at a time: what the order takes from it stays until a whole block has been
# taken. Which layer's turn it is, which of its units go and how sub-models are nested all stay as
# they are.

_ROUNDING = 1e-9
"""Relative room for the rounding errors of a budget that was computed from a rate: half a
sub-model's parameters may come out a hair below the whole number they are."""


def fit(
    units: UnitMap, among: Kept, importance: Tensor, budget: float, width_multiple: int = 1
) -> Kept:
    """The largest sub-model of the units `among` that has at most `budget` parameters.

    "Largest" along the order: as few units are cut as possible, least important first. If even
    one unit (or one block) a layer is over the budget, that smallest sub-model is given.
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
    """Cut a sub-model by a pruned rate P: what stays has at most (1 − P) of its parameters.

    Where that falls below the retention γ_min, units (or blocks) go only as long as it holds; that
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


def carried_out(units: UnitMap, before: Kept, after: Kept, rate: float) -> float:
    """How much of a pruned rate a pruning has carried out.

    Units and blocks are whole, so a little more goes than was asked: that is the rate. Where the
    retention γ_min, or a worker, has stopped it before, it is the share that did go, down to 0.
    """
    whole, left = parameters(units, before), parameters(units, after)
    if left < whole and left <= (1.0 - rate) * whole * (1 + _ROUNDING):
        return rate
    return 1 - left / whole


def smallest_retention(units: UnitMap, width_multiple: int = 1) -> float:
    """What no pruning gets below: all that is never cut, and one unit (or block) of each layer."""
    everything = units.everything()
    return retention(units, fit(units, everything, torch.arange(units.count), 0.0, width_multiple))


def grow(
    units: UnitMap, kept: Kept, importance: Tensor, budget: float, width_multiple: int = 1
) -> Kept:
    """The largest sub-model of at most `budget` parameters that contains the units `kept`.

    The most important of the missing units come back first. Units that are there stay, whatever
    the order says of them and even if they alone are over the budget: growing must not cut.
    """
    first_to_go = _least_important_first(units.everything(), importance)
    place = torch.empty_like(first_to_go)
    place[first_to_go] = torch.arange(units.count)
    kept_last = place + units.count * kept
    return fit(units, units.everything(), kept_last, budget, width_multiple) | kept


def importance_lost(before: Kept, after: Kept, importance: Tensor) -> float:
    """The share of a sub-model's importance that a pruning cut away, from 0 to 1."""
    total = float(importance[before].sum())
    return float(importance[before & ~after].sum()) / total if total > 0 else 0.0


class _Descent:
    """The sub-models that an order leads through, from all units `among` to one block a layer.

    Each is contained in the one before. Where pruning goes on from one of them by the same order,
    it goes on along the same descent.
    """

    def __init__(
        self, units: UnitMap, among: Kept, importance: Tensor, width_multiple: int
    ) -> None:
        self._units = units
        self._among = among
        self._blocks = blocks(units, width_multiple)
        widths = torch.tensor([len(layer.units) for layer in units.layers], dtype=torch.int64)
        self._layer = torch.repeat_interleave(widths)
        """The layer each unit is in."""
        first_to_go = _least_important_first(among, importance)
        self._present = self._by_layer(first_to_go)
        self._place = self._places(first_to_go)
        """Where each unit stands in its layer, counted from 0 for the most important."""
        self._candidates = first_to_go[self._place[first_to_go] > 0]

    def fewest_cuts(self, budget: float) -> int:
        """How many candidates must go at least for what is left to fit the budget."""
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
        """The sub-model when the first `cuts` candidates have gone, its widths rounded up."""
        left = self._present - self._by_layer(self._candidates[:cuts])
        # Rounded up may be more than there is: a layer's width need not be a multiple.
        widths = (left + self._blocks - 1) // self._blocks * self._blocks
        return self._among & (self._place < widths[self._layer])

    def _by_layer(self, numbers: Tensor) -> Tensor:
        return torch.bincount(self._layer[numbers], minlength=len(self._units.layers))

    def _places(self, first_to_go: Tensor) -> Tensor:
        best_first = first_to_go.flip(0)
        layer_by_layer = best_first[self._layer[best_first].argsort(stable=True)]
        begins = self._present.cumsum(0) - self._present
        places = torch.zeros_like(self._layer)
        places[layer_by_layer] = (
            torch.arange(len(layer_by_layer)) - begins[self._layer[layer_by_layer]]
        )
        return places


def _least_important_first(among: Kept, importance: Tensor) -> Tensor:
    """The numbers of the units there are; of equally important ones, the highest number first.

    An importance that is no number says nothing for its unit, which goes before all others.
    """
    importance = importance.double()
    importance = torch.where(importance.isnan(), -torch.inf, importance)
    numbers = among.nonzero().flatten().flip(0)
    return numbers[importance[numbers].argsort(stable=True)]
