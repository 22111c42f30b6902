"""Merging sub-models of different sizes into the global model.

Each arriving sub-model is added into one running sum at the indexes of its units, so memory does
not depend on the number of workers. What to divide by is the question the paper asks:

- *by worker*: by the weight of all workers, as if a missing unit were zero. Pruned units fade.
- *by unit*: by the weight of those workers that hold the unit.

A third rule is ours: *by change*, as if a missing unit had not changed in the round. A unit that
few workers hold then neither fades, as by worker, nor follows those few alone, as by unit.

The sum is kept in double precision, which makes the result independent of the order in which
updates arrive (up to one rounding to float32 in about 10⁸ elements). An element that no update
holds keeps its previous value, so a lost worker's units stay defined.

Batch-norm statistics need care by worker: a unit held by w' of W workers gets its filter scaled
by w'/W, so its outputs' *standard deviation* scales by w'/W too, and its variance by the square of
that. Averaging standard deviations is consistent with it; averaging variances is not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from adaptcl.settings import setting
from adaptcl.units import Kept, State, UnitMap, kept_indexes

Rule = Callable[[Tensor, Tensor, float, Tensor], Tensor]
"""(sum, weight of those who hold an element, weight of all, value before) → merged value."""

_TINY = torch.finfo(torch.float64).tiny
_RULES: dict[str, Rule] = {
    "by-worker": lambda total, held, weight, before: total / weight,
    "by-unit": lambda total, held, weight, before: total / held.clamp_min(_TINY),
    "by-change": lambda total, held, weight, before: (total + (weight - held) * before) / weight,
}


@dataclass(frozen=True)
class AggregationSettings:
    """How sub-models are merged."""

    aggregation: str = setting(
        "by-worker", "what a unit counts as in a sub-model that has lost it", choices=_RULES
    )
    bn_variance: str = setting(
        "std",
        "how running variances are averaged: 'std' averages standard deviations, which fits "
        "by-worker sums; 'variance' averages variances, as plain FedAVG does",
        choices=("std", "variance"),
    )


class Aggregation:
    """A running sum of sub-models; made anew for every merge."""

    def __init__(self, units: UnitMap, like: State, settings: AggregationSettings) -> None:
        self._units = units
        self._rule = _RULES[settings.aggregation]
        self._as_std = (
            frozenset(f"{name}.running_var" for name in units.batch_norms)
            if settings.bn_variance == "std"
            else frozenset[str]()
        )
        self._weight = 0.0
        self._sums: State = {}
        self._cover: State = {}
        for name, tensor in like.items():
            if tensor.is_floating_point():
                self._sums[name] = torch.zeros_like(tensor, dtype=torch.float64)
                cut_dims = {slot.dim for slot in units.by_tensor.get(name, ())}
                # One number for each row and column: the other dimensions are never cut.
                shape = [n if d in cut_dims else 1 for d, n in enumerate(tensor.shape)]
                self._cover[name] = torch.zeros(shape, dtype=torch.float64, device=tensor.device)
            else:
                self._sums[name] = tensor.clone()

    def add(self, state: State, kept: Kept, weight: float) -> None:
        """Add one sub-model, counted `weight` times (how many samples the worker holds)."""
        self._weight += weight
        indexes = kept_indexes(self._units, kept)
        for name, total in self._sums.items():
            tensor = state[name]
            if not tensor.is_floating_point():
                torch.maximum(total, tensor, out=total)
                continue
            value = tensor.double().sqrt() if name in self._as_std else tensor
            where = tuple(i if i is None else i.to(tensor.device) for i in indexes[name])
            _add_at(total, where, value, weight)
            _add_at(self._cover[name], where, None, weight)

    def result(self, previous: State) -> State:
        """The merged model. What nobody held keeps its value from `previous`."""
        merged: State = {}
        for name, total in self._sums.items():
            if not total.is_floating_point():
                merged[name] = total.clone()
                continue
            cover = self._cover[name]
            held = cover > 0
            before = previous[name].double().sqrt() if name in self._as_std else previous[name]
            mean = self._rule(total, cover, self._weight, before)
            if name in self._as_std:
                mean = mean.square()
            mean = mean.to(previous[name].dtype)
            merged[name] = mean if bool(held.all()) else torch.where(held, mean, previous[name])
        return merged


def _add_at(
    total: Tensor, where: tuple[Tensor | None, ...], value: Tensor | None, weight: float
) -> None:
    """total[where] += weight × value, in place; `value` None stands for ones."""
    cut = [(dim, index) for dim, index in enumerate(where) if index is not None]
    if not cut:
        if value is None:
            total += weight
        else:
            total.add_(value, alpha=weight)
    elif len(cut) == 1 and value is not None:
        dim, index = cut[0]
        total.index_add_(dim, index, value.to(total.dtype), alpha=weight)
    else:
        dim, index = cut[0]
        rows = total.index_select(dim, index)
        _add_at(rows, (*where[:dim], None, *where[dim + 1 :]), value, weight)
        total.index_copy_(dim, index, rows)
