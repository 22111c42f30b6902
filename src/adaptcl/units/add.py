"""Adding a sub-model's tensors into sums of the whole model's size: the way back of a cut.

This is all that a server does with an update, so it should cost little more than reading it. In
blocks that stay in the cache of a CPU, what is cut is filled up with zeros (a gather, which
copies whole rows) and the block added; adding zero changes nothing. The obvious ways (an indexed
assignment, `index_add_` along both dimensions) take several times as long and, on a CPU, a
temporary copy of the sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from adaptcl.units.places import Place, Places

_BLOCK = 2**18
"""Elements that each thread of a CPU adds at a time."""


def add_at(total: Tensor, value: Tensor, places: Places, weight: float) -> None:
    """total[places] += weight × value, in place and in the precision of `total`.

    It needs no memory but for one block, and on a GPU it never waits.
    """
    if total.dim() <= 1:  # most tensors of a model are small vectors
        place = places[0] if places else None
        if place is None:
            total.add_(value.to(total.dtype), alpha=weight)
        else:
            total.index_add_(0, place.index, value.to(total.dtype), alpha=weight)
        return
    target = total
    scattered: dict[int, Place] = {}
    for dim, place in enumerate(places):
        if place is None:
            continue
        if place.start is None:
            scattered[dim] = place
        else:
            target = target.narrow(dim, place.start, len(place))
    rows = scattered.pop(0, None)
    step = _step(target)
    shape = [min(step, len(value)), *value.shape[1:]]
    spreads = [_Spread(total, shape, dim, place) for dim, place in scattered.items()]
    for block in _blocks(len(value), step):
        part = value[block]
        for spread in spreads:
            part = spread(part)
        part = part.to(total.dtype)
        if rows is None:
            target[block].add_(part, alpha=weight)
        else:
            target.index_add_(0, rows.index[block], part, alpha=weight)


def blocks(tensor: Tensor) -> Iterator[slice]:
    """Rows of a tensor that are worked on together; all of them where there is no cache to fit."""
    return _blocks(len(tensor), _step(tensor))


class _Spread:
    """Puts parts of tensors at their indexes of a whole dimension, with zeros between them."""

    def __init__(self, total: Tensor, shape: list[int], dim: int, place: Place) -> None:
        """For parts of that shape or of fewer rows; `shape` becomes that of what is given."""
        self._dim = dim
        self._length = shape[dim]
        self._spread = place.spread
        shape[dim] += 1
        # What is cut is taken from here, one past the end.
        self._padded = total.new_empty(shape)
        self._padded.select(dim, self._length).zero_()
        shape[dim] = len(place.spread)
        self._wide = total.new_empty(shape)
        # Single numbers are faster gathered row by row than copied column by column.
        self._each = place.spread.expand(shape) if dim == len(shape) - 1 else None

    def __call__(self, part: Tensor) -> Tensor:
        """The part as wide as the whole; valid until the next call."""
        padded, wide = self._padded[: len(part)], self._wide[: len(part)]
        padded.narrow(self._dim, 0, self._length).copy_(part)
        if self._each is not None:
            return torch.gather(padded, self._dim, self._each[: len(part)], out=wide)
        return torch.index_select(padded, self._dim, self._spread, out=wide)


def _step(target: Tensor) -> int:
    if target.device.type != "cpu":
        return max(1, len(target))
    return max(1, _BLOCK * torch.get_num_threads() // max(1, math.prod(target.shape[1:])))


def _blocks(rows: int, step: int) -> Iterator[slice]:
    return (slice(begin, begin + step) for begin in range(0, rows, step))
