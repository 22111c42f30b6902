"""A table of the slices of all parameters, ordered by the unit that owns them.

The group lasso needs the norm of everything a unit owns before it can change any of it. With this
table one program of a kernel finds all slices of its unit: filter, bias, batch-norm scale and
shift. What no unit owns is cut into pieces that are groups without lasso.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from adaptcl.units import FIXED, Kept, UnitMap, with_fixed

_ALIGNED = 64  # every tensor begins at a multiple of this many entries, which allows fast loads
_PIECE = 4096  # entries of a slice that no unit owns, at most


class TwoOwnersError(Exception):
    """Raised for a tensor that units own along two of its dimensions."""


@dataclass(frozen=True)
class SlicePlace:
    """Where a tensor lies in the vector of all parameters."""

    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def count(self) -> int:
        return torch.Size(self.shape).numel()

    def view(self, vector: Tensor) -> Tensor:
        """The tensor as a view of the vector."""
        return vector.as_strided(self.shape, self.strides, self.start)


@dataclass(frozen=True)
class Slices:
    """The table.

    Slice i has `counts[i]` entries. Its entry e lies in the tensor's memory at
    (e // inners[i]) · outers[i] + e % inners[i], counted from the beginning of the slice.
    """

    firsts: Tensor  # the first slice of each group, and at the end the number of slices
    roots: Tensor  # √|g| of each group, its weight in the lasso; 0 if no unit owns it
    tensors: Tensor  # the number of each slice's tensor
    offsets: Tensor  # where each slice begins in its tensor
    counts: Tensor
    inners: Tensor
    outers: Tensor


def lay_out(shapes: Mapping[str, tuple[int, ...]]) -> tuple[dict[str, SlicePlace], int]:
    """A place for every tensor, filters channels-last, and the length of the vector."""
    places, end = {}, 0
    for name, shape in shapes.items():
        layout = torch.channels_last if len(shape) == 4 else torch.contiguous_format
        like = torch.empty(shape, device="meta", memory_format=layout)
        places[name] = SlicePlace(end, tuple(shape), like.stride())
        end += -(-like.numel() // _ALIGNED) * _ALIGNED
    return places, end


def slices(places: Mapping[str, SlicePlace], units: UnitMap, kept: Kept) -> Slices:
    """The table for the sub-model of these kept units."""
    count = int(kept.sum())
    position = torch.cat([torch.cumsum(kept.long(), 0) - 1, torch.tensor([FIXED])])
    stays = with_fixed(kept)
    owned: dict[str, tuple[int, Tensor]] = {}
    for slot in units.slots:
        if slot.owned and slot.tensor in places:
            if slot.tensor in owned:
                raise TwoOwnersError(slot.tensor)
            owned[slot.tensor] = slot.dim, position[slot.ids[stays[slot.ids]]]
    rows: list[Tensor] = []
    unowned = count
    sizes = torch.zeros(count)
    for number, (name, place) in enumerate(places.items()):
        if name not in owned:
            unowned = _pieces(rows, number, place.count, unowned)
            continue
        dim, group = owned[name]
        entries = place.count // max(1, place.shape[dim])  # of one slice
        # The stride of a dimension of size one means nothing: its one slice is the whole tensor.
        inner, outer = (
            (place.strides[dim], place.strides[dim] * place.shape[dim])
            if place.shape[dim] > 1
            else (place.count, 0)
        )
        mine = group != FIXED
        sizes.index_add_(0, group[mine], torch.full((int(mine.sum()),), float(entries)))
        nobody = (~mine).long()
        fresh = unowned + torch.cumsum(nobody, 0) - 1
        unowned += int(nobody.sum())
        index = torch.arange(place.shape[dim])
        rows.append(
            torch.stack(
                [
                    torch.where(mine, group, fresh),
                    torch.full_like(index, number),
                    index * inner if place.shape[dim] > 1 else index,
                    torch.full_like(index, entries),
                    torch.full_like(index, inner),
                    torch.full_like(index, outer),
                ]
            )
        )
    table = torch.cat(rows, 1) if rows else torch.empty(6, 0, dtype=torch.long)
    table = table[:, table[0].argsort(stable=True)]
    firsts = torch.searchsorted(table[0].contiguous(), torch.arange(unowned + 1))
    roots = torch.cat([sizes.sqrt(), torch.zeros(unowned - count)])
    return Slices(firsts, roots, *table[1:].contiguous())


def _pieces(rows: list[Tensor], number: int, count: int, group: int) -> int:
    """Add slices of a tensor that no unit owns, each its own group; returns the next free group."""
    offsets = torch.arange(0, count, _PIECE)
    counts = torch.clamp(count - offsets, max=_PIECE)
    rows.append(
        torch.stack(
            [
                group + torch.arange(len(offsets)),
                torch.full_like(offsets, number),
                offsets,
                counts,
                counts,
                torch.zeros_like(offsets),
            ]
        )
    )
    return group + len(offsets)
