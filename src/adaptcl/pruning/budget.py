"""How much is cut: from a pruned rate and an importance order to the units that stay.

Retention γ is the fraction of the model's *parameters* that are kept. Units go in order of
importance, least important first, until what is left fits the budget; the most important unit of
every layer is never cut, because a layer without units is no layer. With one order for everybody,
two budgets always give nested sub-models: the smaller is contained in the larger.
"""

from __future__ import annotations

import torch
from torch import Tensor

from adaptcl.units import Kept, UnitMap, parameters, retention

_ROUNDING = 1e-9
"""Relative room for the rounding errors of a budget that was computed from a rate: half a
sub-model's parameters may come out a hair below the whole number they are."""


def fit(units: UnitMap, among: Kept, importance: Tensor, budget: float) -> Kept:
    """The largest sub-model of the units `among` that has at most `budget` parameters.

    "Largest" along the order: as few units are cut as possible, least important first. If even
    one unit a layer is over the budget, that smallest sub-model is given.
    """
    candidates = _cutting_order(units, among, importance)
    return _without(among, candidates[: _how_many(units, among, candidates, budget)])


def prune(
    units: UnitMap, kept: Kept, importance: Tensor, rate: float, min_retention: float = 0.0
) -> Kept:
    """Cut a sub-model by a pruned rate P: what stays has at most (1 − P) of its parameters.

    Where that falls below the retention γ_min, one unit fewer is cut.
    """
    candidates = _cutting_order(units, kept, importance)
    count = _how_many(units, kept, candidates, (1.0 - rate) * parameters(units, kept))
    left = _without(kept, candidates[:count])
    if count > 0 and retention(units, left) < min_retention:
        return _without(kept, candidates[: count - 1])
    return left


def importance_lost(before: Kept, after: Kept, importance: Tensor) -> float:
    """The share of a sub-model's importance that a pruning cut away, from 0 to 1."""
    total = float(importance[before].sum())
    return float(importance[before & ~after].sum()) / total if total > 0 else 0.0


def _cutting_order(units: UnitMap, among: Kept, importance: Tensor) -> Tensor:
    """The units that may go, least important first; ties go by unit number, highest first.

    An importance that is no number says nothing for its unit, which goes before all others.
    """
    importance = importance.double()
    importance = torch.where(importance.isnan(), -torch.inf, importance)
    may_go = among.clone()
    for layer in units.layers:
        present = among[layer.units.start : layer.units.stop].nonzero().flatten()
        if len(present):
            numbers = present + layer.units.start
            may_go[numbers[importance[numbers].argmax()]] = False
    numbers = may_go.nonzero().flatten().flip(0)
    return numbers[importance[numbers].argsort(stable=True)]


def _how_many(units: UnitMap, among: Kept, candidates: Tensor, budget: float) -> int:
    """The fewest candidates that must go for the rest to fit the budget."""
    limit = budget * (1 + _ROUNDING)
    low, high = 0, len(candidates)
    while low < high:
        middle = (low + high) // 2
        if parameters(units, _without(among, candidates[:middle])) <= limit:
            high = middle
        else:
            low = middle + 1
    return low


def _without(kept: Kept, cut: Tensor) -> Kept:
    left = kept.clone()
    left[cut] = False
    return left
