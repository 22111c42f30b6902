"""Cutting the tensors of a model down to its kept units, and putting them back.

Everything rests on `kept_indexes`: for each dimension of each tensor, the indexes that stay.
`cut` and `put_back` are inverse to each other on what is kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from adaptcl.errors import UpdateError
from adaptcl.units.unit_map import FIXED, Kept, State, UnitMap

Indexes = tuple[Tensor | None, ...]
"""For each dimension of a tensor the indexes kept, or None where all of them are."""


def check_kept(units: UnitMap, kept: Kept) -> None:
    """Raise `UpdateError` unless `kept` describes a sub-model of this model."""
    if kept.dtype != torch.bool or kept.shape != (units.count,):
        raise UpdateError(
            f"Kept units must be {units.count} booleans, one for each unit of the model, "
            f"not {kept.dtype} of shape {tuple(kept.shape)}."
        )
    for layer in units.layers:
        if not kept[layer.units.start : layer.units.stop].any():
            raise UpdateError(f"Layer {layer.name!r} is left without any unit.")


def kept_indexes(units: UnitMap, kept: Kept) -> dict[str, Indexes]:
    """The indexes that stay, for each tensor of the model, in the order of its state dict."""
    check_kept(units, kept)
    patterns = units.patterns
    stays = _with_fixed(kept)[patterns.ids].tensor_split(patterns.ends[:-1])
    chosen = [None if flags.all() else flags.nonzero().flatten() for flags in stays]
    found: dict[str, list[Tensor | None]] = {
        name: [None] * len(shape) for name, shape in units.shapes.items()
    }
    for slot, pattern in zip(units.slots, patterns.of_slot, strict=True):
        found[slot.tensor][slot.dim] = chosen[pattern]
    return {name: tuple(indexes) for name, indexes in found.items()}


def cut(state: State, units: UnitMap, kept: Kept) -> State:
    """The tensors of the sub-model: contiguous copies without what belongs to no kept unit."""
    indexes = kept_indexes(units, kept)
    return {name: select(tensor.detach(), indexes[name]) for name, tensor in state.items()}


def put_back(sub: State, units: UnitMap, kept: Kept, into: State) -> None:
    """Write a sub-model's tensors at their places in full-size tensors."""
    indexes = kept_indexes(units, kept)
    for name, tensor in sub.items():
        if name not in indexes or name not in into:
            raise UpdateError(f"The model has no tensor {name!r}.")
        _write(name, tensor.detach(), indexes[name], into[name].detach())


def zero(state: State, units: UnitMap, kept: Kept) -> State:
    """A full-size copy in which every unit that is not kept gives exactly zero.

    Zeros in all that a unit owns do that: a batch norm with scale, shift and mean zero turns
    zero into zero whatever its variance, which `eps` keeps from dividing by zero.
    """
    check_kept(units, kept)
    copies = {name: tensor.detach().clone() for name, tensor in state.items()}
    stays = _with_fixed(kept)
    for slot in units.slots:
        if slot.owned and slot.tensor in copies:
            gone = (~stays[slot.ids]).nonzero().flatten()
            tensor = copies[slot.tensor]
            tensor.index_fill_(slot.dim, gone.to(tensor.device), 0)
    return copies


def select(tensor: Tensor, indexes: Indexes) -> Tensor:
    """A contiguous copy of the kept part of one tensor."""
    # The dimension that loses most goes first, so that the others move less.
    order = sorted(
        (len(index) / tensor.shape[dim], dim)
        for dim, index in enumerate(indexes)
        if index is not None
    )
    if not order:
        return tensor.clone(memory_format=torch.contiguous_format)
    for _, dim in order:
        index = indexes[dim]
        assert index is not None
        tensor = tensor.index_select(dim, index.to(tensor.device))
    return tensor


def _write(name: str, source: Tensor, indexes: Indexes, target: Tensor) -> None:
    expected = tuple(
        size if index is None else len(index)
        for size, index in zip(target.shape, indexes, strict=True)
    )
    if source.shape != expected:
        raise UpdateError(
            f"Tensor {name!r} has shape {tuple(source.shape)} where its kept units make {expected}."
        )
    source = source.to(target.device, target.dtype)
    dims = [dim for dim, index in enumerate(indexes) if index is not None]
    if not dims:
        target.copy_(source)
    elif len(dims) == 1:
        index = indexes[dims[0]]
        assert index is not None
        target.index_copy_(dims[0], index.to(target.device), source)
    else:
        target[_grid(indexes, target)] = source


def _grid(indexes: Indexes, target: Tensor) -> tuple[Tensor, ...]:
    """Index tensors that together address a block of the kept indexes of every dimension."""
    last = max(dim for dim, index in enumerate(indexes) if index is not None)
    return tuple(
        (torch.arange(size) if index is None else index)
        .to(target.device)
        .reshape(_column(dim, last + 1))
        for dim, (index, size) in enumerate(
            zip(indexes[: last + 1], target.shape[: last + 1], strict=True)
        )
    )


def _column(dim: int, dims: int) -> Sequence[int]:
    return [-1 if d == dim else 1 for d in range(dims)]


def _with_fixed(kept: Kept) -> Tensor:
    """Kept flags with one more at the end, which is where the index `FIXED` leads."""
    assert FIXED == -1
    return torch.cat([kept.cpu(), torch.ones(1, dtype=torch.bool)])
