"""Every parameter of a sub-model as slices in one long vector, ordered by the unit that owns them.

The group lasso needs the norm of all that a unit owns before it can change any of it. With this
table one program of a kernel finds everything of its unit, wherever it lies: filter, bias,
batch-norm scale and shift. What no unit owns is cut into pieces that belong to nobody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from adaptcl.training.gpu.kernels import descent as kernels
from adaptcl.training.group_lasso import SMALLEST_NORM
from adaptcl.training.task import Recipe
from adaptcl.units import FIXED, Kept, UnitMap, with_fixed

_ALIGNED = 64
"""Every tensor begins at a multiple of this many entries, where fast loads are possible."""
_PIECE = 4096
"""Entries of a slice that no unit owns, at most."""


class TwoOwnersError(Exception):
    """Raised for a tensor that units own along two of its dimensions."""


@dataclass(frozen=True)
class SlicePlace:
    """Where a tensor lies in the long vector."""

    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def count(self) -> int:
        """How many entries the tensor has."""
        return torch.Size(self.shape).numel()

    def view(self, vector: Tensor) -> Tensor:
        """The tensor, as a part of the vector."""
        return vector.as_strided(self.shape, self.strides, self.start)


@dataclass(frozen=True)
class Slices:
    """The table. Slice i has `counts[i]` entries; entry e of it lies in its tensor's memory at
    (e // inners[i]) · outers[i] + e % inners[i] from the slice's beginning."""

    firsts: Tensor
    """For each group its first slice, and at the end how many slices there are."""
    roots: Tensor
    """For each group √|g|, the lasso's weight; 0 where no unit owns it."""
    tensors: Tensor
    """For each slice the number of its tensor."""
    offsets: Tensor
    """Where the slice begins in its tensor."""
    counts: Tensor
    inners: Tensor
    outers: Tensor


def lay_out(shapes: Mapping[str, tuple[int, ...]]) -> tuple[dict[str, SlicePlace], int]:
    """A place for every tensor, images' filters channels-last, and the vector's length."""
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
            unowned = _pieces(rows, number, 0, place.count, unowned)
            continue
        dim, group = owned[name]
        each = place.count // max(1, place.shape[dim])
        # A dimension of size one has no stride of its own: its one slice is the whole tensor.
        inner, outer = (
            (place.strides[dim], place.strides[dim] * place.shape[dim])
            if place.shape[dim] > 1
            else (place.count, 0)
        )
        mine = group != FIXED
        sizes.index_add_(0, group[mine], torch.full((int(mine.sum()),), float(each)))
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
                    torch.full_like(index, each),
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


def _pieces(rows: list[Tensor], number: int, start: int, count: int, group: int) -> int:
    """Slices of a tensor that no unit owns, each a group of its own; the next free group."""
    offsets = torch.arange(start, start + count, _PIECE)
    counts = torch.clamp(start + count - offsets, max=_PIECE)
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


# SGD with momentum, weight decay and group lasso on all parameters at once, in one kernel.
#
# All parameters are parts of one vector, their velocities of another. For half-precision training
# a third vector holds the weights rounded to bfloat16, which is what the forward pass reads: the
# step that changes a weight writes its rounded form too, and no cast is left.

_BLOCK, _WARPS = 512, 4
_NONE, _ZERO, _FULL, _HALF = range(4)


class Descent:
    """The parameters of a sub-model in the form in which they are trained."""

    def __init__(
        self, model: nn.Module, units: UnitMap, kept: Kept, recipe: Recipe, *, half: bool
    ) -> None:
        named = dict(model.named_parameters())
        device = next(iter(named.values())).device
        self._recipe = recipe
        self._places, length = lay_out({n: tuple(p.shape) for n, p in named.items()})
        self._weights = torch.zeros(length, device=device)
        self._velocities = torch.zeros(length, device=device)
        self._halves = self._weights.bfloat16() if half else None
        self.leaves: dict[str, Tensor] = {}
        """What the forward pass reads, by parameter name."""
        multiplied = _multiplied(model) if half else set()
        for name, parameter in named.items():
            place = self._places[name]
            place.view(self._weights).copy_(parameter.detach())
            parameter.data = place.view(self._weights)
            read = self._halves if name in multiplied and self._halves is not None else None
            leaf = parameter.data if read is None else place.view(read)
            self.leaves[name] = leaf.detach().requires_grad_(parameter.requires_grad)
        self.round()
        table = slices(self._places, units, kept)
        roots = table.roots if recipe.strength > 0 else torch.zeros_like(table.roots)
        starts = torch.tensor([place.start for place in self._places.values()])
        self._tensors, self._offsets = table.tensors, table.offsets
        self._groups = len(table.roots)
        self._table = tuple(
            column.to(device)
            for column in (
                table.firsts,
                roots,
                starts[table.tensors] + table.offsets,
                table.counts.int(),
                table.inners.int(),
                table.outers.int(),
            )
        )

    def round(self) -> None:
        """Make the rounded weights those of the weights, which were set from outside."""
        if self._halves is not None:
            self._halves.copy_(self._weights)

    def rest(self) -> None:
        """Forget all velocity."""
        self._velocities.zero_()

    def gradients(self) -> Gradients:
        """A fresh table for the places of gradients."""
        return Gradients(len(self._tensors), self._weights.device)

    def step(self, gradients: Gradients, coefficient: Tensor, rate: Tensor) -> None:
        """Change all parameters that have a gradient; λ and learning rate are read on the GPU."""
        recipe = self._recipe
        kernels.descend[self._groups,](
            self._weights,
            self._weights if self._halves is None else self._halves,
            self._velocities,
            *self._table,
            gradients.addresses,
            gradients.kinds,
            coefficient,
            rate,
            recipe.momentum,
            recipe.weight_decay,
            SMALLEST=SMALLEST_NORM,
            HALVES=self._halves is not None,
            BLOCK=_BLOCK,
            num_warps=_WARPS,
        )

    def dense(self, name: str, gradient: Tensor) -> Tensor:
        """A gradient in the layout of its parameter."""
        place = self._places[name]
        if gradient.stride() == place.strides or gradient.dim() == 1:
            return gradient.contiguous() if gradient.dim() == 1 else gradient
        laid_out = torch.empty_strided(
            place.shape, place.strides, dtype=gradient.dtype, device=gradient.device
        )
        return laid_out.copy_(gradient)

    def where(self, found: Sequence[Tensor | None], zero: set[str]) -> tuple[Tensor, Tensor]:
        """For each slice where its gradient lies and of what kind it is.

        A parameter named in `zero` has no gradient but is trained, as if its gradient were zero.
        """
        kinds, addresses, sizes = [], [], []
        for (name, leaf), gradient in zip(self.leaves.items(), found, strict=True):
            if gradient is None:
                kinds.append(_ZERO if name in zero and leaf.requires_grad else _NONE)
            else:
                kinds.append(_HALF if gradient.dtype == torch.bfloat16 else _FULL)
            addresses.append(0 if gradient is None else gradient.data_ptr())
            sizes.append(0 if gradient is None else gradient.element_size())
        of_slice = torch.tensor(addresses)[self._tensors]
        of_slice += torch.tensor(sizes)[self._tensors] * self._offsets
        return of_slice, torch.tensor(kinds, dtype=torch.int32)[self._tensors]


class Gradients:
    """What the step's kernel reads to find the gradients; on the GPU."""

    def __init__(self, count: int, device: torch.device) -> None:
        self.addresses = torch.zeros(count, dtype=torch.long, device=device)
        self.kinds = torch.zeros(count, dtype=torch.int32, device=device)

    def point(self, addresses: Tensor, kinds: Tensor) -> None:
        """Say where the gradients lie."""
        self.addresses.copy_(addresses)
        self.kinds.copy_(kinds)


def _multiplied(model: nn.Module) -> set[str]:
    """Names of the parameters that autocast would round anyway: those of matrix products."""
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules()
        if isinstance(module, nn.Linear | _ConvNd)
        for name, _ in module.named_parameters(recurse=False)
    }
