"""Cutting the tensors of a model to its kept units, and putting them back or adding them up.

Everything rests on `kept_places`: for each dimension of each tensor, the indexes that stay.
They are computed once for each set of kept units and each device, and cached: on a GPU nothing
is then copied or waited for between one tensor and the next.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from adaptcl.errors import UpdateError
from adaptcl.units.unit_map import Kept, State, UnitMap

CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class Place:
    """The indexes that stay in one dimension of a tensor."""

    index: Tensor
    """In ascending order."""
    start: int | None
    """The first index if there are no gaps; otherwise None."""
    spread: Tensor
    """For every index of the whole dimension its position in `index`; `len(index)` if it is cut."""

    def __len__(self) -> int:
        return len(self.index)


Places = tuple[Place | None, ...]
"""For each dimension of a tensor the indexes that stay, or None if all stay."""


def check_kept(units: UnitMap, kept: Kept) -> None:
    """Raise `UpdateError` unless `kept` describes a sub-model of this model."""
    _check_form(units, kept)
    for layer in units.layers:
        if not kept[layer.units.start : layer.units.stop].any():
            raise UpdateError(f"Layer {layer.name!r} is left without any unit.")


def kept_places(units: UnitMap, kept: Kept, device: torch.device = CPU) -> Mapping[str, Places]:
    """The indexes that stay in each tensor of the model, in the order of its state dict."""
    _check_form(units, kept)
    key = ("places", device, kept_key(kept))
    return units.cache.get(key, lambda: _find_places(units, kept, device))


def cut_shapes(units: UnitMap, kept: Kept) -> Mapping[str, tuple[int, ...]]:
    _check_form(units, kept)
    return units.cache.get(("shapes", kept_key(kept)), lambda: _shapes(units, kept))


def kept_key(kept: Kept) -> bytes:
    return kept.cpu().numpy().tobytes()


def with_fixed(kept: Kept) -> Tensor:
    """Kept flags with a True at the end, so that the index `FIXED` is always kept."""
    return torch.cat([kept.cpu(), torch.ones(1, dtype=torch.bool)])


def _check_form(units: UnitMap, kept: Kept) -> None:
    if kept.dtype != torch.bool or kept.shape != (units.count,):
        raise UpdateError(
            f"Kept units must be {units.count} booleans, one for each unit of the model, "
            f"not {kept.dtype} of shape {tuple(kept.shape)}."
        )


def _find_places(units: UnitMap, kept: Kept, device: torch.device) -> Mapping[str, Places]:
    check_kept(units, kept)
    patterns = units.patterns
    stays = with_fixed(kept)[patterns.ids].tensor_split(patterns.ends[:-1])
    chosen = [None if bool(flags.all()) else _place(flags, device) for flags in stays]
    found: dict[str, list[Place | None]] = {
        name: [None] * len(shape) for name, shape in units.shapes.items()
    }
    for slot, pattern in zip(units.slots, patterns.of_slot, strict=True):
        found[slot.tensor][slot.dim] = chosen[pattern]
    return {name: tuple(places) for name, places in found.items()}


def _shapes(units: UnitMap, kept: Kept) -> Mapping[str, tuple[int, ...]]:
    places = kept_places(units, kept)
    return {
        name: tuple(
            size if place is None else len(place)
            for size, place in zip(shape, places[name], strict=True)
        )
        for name, shape in units.shapes.items()
    }


def _place(stays: Tensor, device: torch.device) -> Place:
    index = stays.nonzero().flatten()
    count = len(index)
    # Cut indexes point one past the end, where `add_at` puts zeros.
    spread = torch.where(stays, stays.cumsum(0) - 1, count)
    first = int(index[0]) if count else 0
    is_range = count > 0 and int(index[-1]) - first + 1 == count
    return Place(index.to(device), first if is_range else None, spread.to(device))


def cut(state: Mapping[str, Tensor], units: UnitMap, kept: Kept) -> State:
    """The tensors of the sub-model, as contiguous copies."""
    return {name: _cut_one(name, tensor, units, kept) for name, tensor in state.items()}


def blank(units: UnitMap, kept: Kept, device: torch.device) -> State:
    """Tensors of a sub-model's shapes and types that hold zeros and take no memory; read only."""
    zeros = {
        dtype: torch.zeros((), dtype=dtype, device=device)
        for dtype in {units.dtype(name) for name in units.shapes}
    }
    return {
        name: zeros[units.dtype(name)].expand(shape)
        for name, shape in cut_shapes(units, kept).items()
    }


class CutOnDemand(Mapping[str, Tensor]):
    """The tensors of a sub-model, each cut from the whole model when it is read.

    So a server with tasks for a thousand workers holds one model, not a thousand. The tensors of
    the whole model must not be changed while this is in use.
    """

    def __init__(self, state: State, units: UnitMap, kept: Kept) -> None:
        self._state = state
        self._units = units
        self._kept = kept

    def __getitem__(self, name: str) -> Tensor:
        return _cut_one(name, self._state[name], self._units, self._kept)

    def __iter__(self) -> Iterator[str]:
        return iter(self._state)

    def __len__(self) -> int:
        return len(self._state)


def put_back(sub: Mapping[str, Tensor], units: UnitMap, kept: Kept, into: State) -> None:
    """Write a sub-model's tensors to their places in full-size tensors: the inverse of `cut`."""
    shapes = cut_shapes(units, kept)
    for name, tensor in sub.items():
        if name not in shapes or name not in into:
            raise UpdateError(f"The model has no tensor {name!r}.")
        if tensor.shape != shapes[name]:
            raise UpdateError(
                f"Tensor {name!r} has shape {tuple(tensor.shape)} where its kept units make "
                f"{shapes[name]}."
            )
        target = into[name].detach()
        places = kept_places(units, kept, target.device)[name]
        source = tensor.detach().to(target.device, target.dtype)
        if any(place is not None for place in places):
            target[_grid(places, target)] = source
        else:
            target.copy_(source)


def zero(state: State, units: UnitMap, kept: Kept, among: Kept | None = None) -> State:
    """A full-size copy in which every unit that is not kept outputs exactly zero.

    For that, all that the unit owns is zeroed. A batch norm with scale, shift and mean zero maps
    zero to zero, whatever its variance; `eps` prevents a division by zero. With `among` it is a
    copy of the sub-model with these units.
    """
    check_kept(units, kept)
    among = units.everything() if among is None else among
    copies = cut(state, units, among)
    present, stays = with_fixed(among), with_fixed(kept)
    for slot in units.slots:
        if slot.owned and slot.tensor in copies:
            gone = (~stays[slot.ids[present[slot.ids]]]).nonzero().flatten()
            tensor = copies[slot.tensor]
            tensor.index_fill_(slot.dim, gone.to(tensor.device), 0)
    return copies


def select(tensor: Tensor, places: Places) -> Tensor:
    """A contiguous copy of the kept part of one tensor."""
    # The dimension that loses most comes first, so that the others copy less.
    shrinking = [
        (len(place) / tensor.shape[dim], dim, place)
        for dim, place in enumerate(places)
        if place is not None
    ]
    if not shrinking:
        return tensor.clone(memory_format=torch.contiguous_format)
    for _, dim, place in sorted(shrinking, key=lambda each: each[:2]):
        tensor = tensor.index_select(dim, place.index.to(tensor.device))
    return tensor


def _cut_one(name: str, tensor: Tensor, units: UnitMap, kept: Kept) -> Tensor:
    return select(tensor.detach(), kept_places(units, kept, tensor.device)[name])


def _grid(places: Places, tensor: Tensor) -> tuple[Tensor, ...]:
    """Index tensors that together address the kept part of one tensor."""
    last = max(dim for dim, place in enumerate(places) if place is not None)
    indexes = [
        torch.arange(tensor.shape[dim], device=tensor.device) if place is None else place.index
        for dim, place in enumerate(places[: last + 1])
    ]
    return torch.meshgrid(indexes, indexing="ij")


def recut(state: Mapping[str, Tensor], units: UnitMap, kept: Kept, smaller: Kept) -> State:
    """Cut a sub-model with the units `kept` further, to the units `smaller` among them."""
    if bool((smaller & ~kept).any()):
        raise UpdateError("A sub-model can only be cut to units that it has.")
    have, want = kept_places(units, kept), kept_places(units, smaller)
    return {
        name: select(tensor, tuple(map(_within, have[name], want[name])))
        for name, tensor in state.items()
    }


def _within(have: Place | None, want: Place | None) -> Place | None:
    """The place of some kept indexes among more of them."""
    if have is None or want is None:
        return want
    return _place(torch.isin(have.index, want.index), CPU)


_BLOCK = 2**18
"""Elements that each thread of a CPU adds at a time."""


def add_at(total: Tensor, value: Tensor, places: Places, weight: float) -> None:
    """total[places] += weight × value, in place and in the precision of `total`.

    This is all that a server does with an update, so it should cost little more than reading it.
    In blocks that fit in the cache of a CPU, a gather fills up cut indexes with zeros, and the
    block is added. The obvious ways (indexed assignment, `index_add_` along both dimensions) take
    several times as long and need a temporary copy of the sum. On a GPU this never waits.
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


def row_blocks(tensor: Tensor) -> Iterator[slice]:
    """Rows of a tensor that fit in the cache of a CPU together; on a GPU all rows."""
    return _blocks(len(tensor), _step(tensor))


class _Spread:
    """Spreads the rows of a sub-model's tensor over a whole dimension, with zeros in between."""

    def __init__(self, total: Tensor, shape: list[int], dim: int, place: Place) -> None:
        """`shape` is the largest shape of an input; it becomes that of the output."""
        self._dim = dim
        self._length = shape[dim]
        self._spread = place.spread
        shape[dim] += 1
        # Cut indexes read this zero, one past the end.
        self._padded = total.new_empty(shape)
        self._padded.select(dim, self._length).zero_()
        shape[dim] = len(place.spread)
        self._wide = total.new_empty(shape)
        # Along the last dimension, a gather is faster than copying column by column.
        self._each = place.spread.expand(shape) if dim == len(shape) - 1 else None

    def __call__(self, part: Tensor) -> Tensor:
        """The spread tensor, which is valid until the next call."""
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
