"""From a sub-model to a smaller one inside it, without the whole model at hand."""

from __future__ import annotations

import torch

from adaptcl.errors import UpdateError
from adaptcl.units.cut import Indexes, kept_indexes, select
from adaptcl.units.unit_map import Kept, State, UnitMap


def recut(state: State, units: UnitMap, kept: Kept, smaller: Kept) -> State:
    """Cut a sub-model that has the units `kept` down to the units `smaller`, all among them."""
    if bool((smaller & ~kept).any()):
        raise UpdateError("A sub-model can only be cut to units that it has.")
    have, want = kept_indexes(units, kept), kept_indexes(units, smaller)
    return {name: select(tensor, _within(have[name], want[name])) for name, tensor in state.items()}


def cut_shapes(units: UnitMap, kept: Kept) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor of a sub-model."""
    indexes = kept_indexes(units, kept)
    return {
        name: tuple(
            size if index is None else len(index)
            for size, index in zip(shape, indexes[name], strict=True)
        )
        for name, shape in units.shapes.items()
    }


def _within(have: Indexes, want: Indexes) -> Indexes:
    """Where the wanted indexes stand among those that are there; both are ascending."""
    return tuple(
        inner if outer is None or inner is None else torch.searchsorted(outer, inner)
        for outer, inner in zip(have, want, strict=True)
    )
