"""The size of a sub-model: parameters, retention γ, floating-point operations and bytes.

Finding the units for a pruned rate asks for sizes thousands of times, so they are computed by
counting kept indexes, without cutting anything.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from adaptcl.units.cut import kept_key, with_fixed
from adaptcl.units.unit_map import Kept, UnitMap


@dataclass(frozen=True)
class _Sizes:
    """The sizes that every task of a sub-model asks for again."""

    retention: float
    flops: int
    bytes: int


def smallest(units: UnitMap) -> Kept:
    """The smallest sub-model: one unit of every layer. All units of a layer have the same size."""
    kept = torch.zeros_like(units.everything())
    for layer in units.layers:
        kept[layer.units.start] = True
    return kept


def parameters(units: UnitMap, kept: Kept) -> int:
    """The number of trained parameters of the sub-model: frozen ones travel once and stay."""
    counts = _kept_counts(units, kept)
    return sum(_size(units, counts, name) for name in units.trained)


def retention(units: UnitMap, kept: Kept) -> float:
    """The fraction γ of the model's trained parameters that the sub-model keeps."""
    return _sizes(units, kept).retention


def flops(units: UnitMap, kept: Kept) -> int:
    """Floating-point operations of the sub-model's forward pass for one sample.

    Every element of a weight counts as a multiplication and an addition at every output position.
    """
    return _sizes(units, kept).flops


def size_bytes(units: UnitMap, kept: Kept) -> int:
    """Bytes of all tensors of the sub-model; a tied tensor counts once."""
    return _sizes(units, kept).bytes


def _sizes(units: UnitMap, kept: Kept) -> _Sizes:
    return units.cache.get(("sizes", kept_key(kept)), lambda: _compute_sizes(units, kept))


def _compute_sizes(units: UnitMap, kept: Kept) -> _Sizes:
    counts = _kept_counts(units, kept)
    whole = sum(math.prod(units.shapes[name]) for name in units.trained)
    return _Sizes(
        retention=parameters(units, kept) / whole,
        flops=2 * sum(work.positions * _size(units, counts, work.weight) for work in units.work),
        bytes=sum(
            units.dtype(name).itemsize * _size(units, counts, name)
            for name in units.shapes.keys() - units.tied.keys()
        ),
    )


def _size(units: UnitMap, counts: dict[str, dict[int, int]], name: str) -> int:
    """The number of elements of one tensor in the sub-model."""
    size = math.prod(units.shapes[name])
    for dim, count in counts.get(name, {}).items():
        size = size // units.shapes[name][dim] * count
    return size


def _kept_counts(units: UnitMap, kept: Kept) -> dict[str, dict[int, int]]:
    """The number of kept indexes, by tensor and dimension that has units."""
    patterns = units.patterns
    stays = with_fixed(kept)[patterns.ids]
    before = torch.cat([torch.zeros(1, dtype=torch.int64), stays.cumsum(0)])
    upto = before[patterns.ends]
    per_pattern = torch.diff(upto, prepend=torch.zeros(1, dtype=torch.int64)).tolist()
    counts: dict[str, dict[int, int]] = {}
    for slot, pattern in zip(units.slots, patterns.of_slot, strict=True):
        counts.setdefault(slot.tensor, {})[slot.dim] = per_pattern[pattern]
    return counts
