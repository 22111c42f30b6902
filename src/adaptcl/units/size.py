"""How big a sub-model is: parameters, floating-point operations and bytes that travel.

The pruned rate is found by searching over kept units, so these are asked thousands of times:
they count kept indexes, and never cut anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from adaptcl.units.places import kept_key, with_fixed
from adaptcl.units.unit_map import Kept, UnitMap


@dataclass(frozen=True)
class _Sizes:
    """What is asked again for every task of a sub-model."""

    retention: float
    flops: int
    bytes: int


def smallest(units: UnitMap) -> Kept:
    """One unit of every layer; which one does not matter, as those of a layer are alike."""
    kept = torch.zeros_like(units.everything())
    for layer in units.layers:
        kept[layer.units.start] = True
    return kept


def parameters(units: UnitMap, kept: Kept) -> int:
    """How many parameters the sub-model has."""
    return _elements(units, kept, units.parameters)


def retention(units: UnitMap, kept: Kept) -> float:
    """The fraction γ of the model's parameters that the sub-model keeps."""
    return _sizes(units, kept).retention


def flops(units: UnitMap, kept: Kept) -> int:
    """Floating-point operations of the sub-model's forward pass for one sample.

    A multiplication and an addition for every element of a weight at every output position.
    """
    return _sizes(units, kept).flops


def size_bytes(units: UnitMap, kept: Kept) -> int:
    """Bytes of all tensors of the sub-model, each in its own type, and a tied one once."""
    return _sizes(units, kept).bytes


def _sizes(units: UnitMap, kept: Kept) -> _Sizes:
    return units.recent.get(("sizes", kept_key(kept)), lambda: _work_out(units, kept))


def _work_out(units: UnitMap, kept: Kept) -> _Sizes:
    counts = _kept_counts(units, kept)
    whole = sum(math.prod(units.shapes[name]) for name in units.parameters)
    return _Sizes(
        retention=parameters(units, kept) / whole,
        flops=2 * sum(work.positions * _size(units, counts, work.weight) for work in units.work),
        bytes=sum(
            units.item_bytes.get(name, 4) * _size(units, counts, name)
            for name in units.shapes.keys() - units.tied.keys()
        ),
    )


def _elements(units: UnitMap, kept: Kept, names: Iterable[str]) -> int:
    counts = _kept_counts(units, kept)
    return sum(_size(units, counts, name) for name in names)


def _size(units: UnitMap, counts: dict[str, dict[int, int]], name: str) -> int:
    """The elements of one tensor in the sub-model."""
    size = math.prod(units.shapes[name])
    for dim, count in counts.get(name, {}).items():
        size = size // units.shapes[name][dim] * count
    return size


def _kept_counts(units: UnitMap, kept: Kept) -> dict[str, dict[int, int]]:
    """For each tensor and dimension with units, how many indexes stay."""
    patterns = units.patterns
    stays = with_fixed(kept)[patterns.ids]
    before = torch.cat([torch.zeros(1, dtype=torch.int64), stays.cumsum(0)])
    upto = before[patterns.ends]
    per_pattern = torch.diff(upto, prepend=torch.zeros(1, dtype=torch.int64)).tolist()
    counts: dict[str, dict[int, int]] = {}
    for slot, pattern in zip(units.slots, patterns.of_slot, strict=True):
        counts.setdefault(slot.tensor, {})[slot.dim] = per_pattern[pattern]
    return counts
