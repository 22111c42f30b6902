"""From a sub-model to a smaller one inside it, without the whole model at hand."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from adaptcl.errors import UpdateError
from adaptcl.units.cut import Indexes, kept_indexes, select
from adaptcl.units.unit_map import Kept, State, UnitMap


def recut(state: Mapping[str, Tensor], units: UnitMap, kept: Kept, smaller: Kept) -> State:
    """Cut a sub-model that has the units `kept` down to the units `smaller`, all among them."""
    if bool((smaller & ~kept).any()):
        raise UpdateError("A sub-model can only be cut to units that it has.")
    have, want = kept_indexes(units, kept), kept_indexes(units, smaller)
    return {name: select(tensor, _within(have[name], want[name])) for name, tensor in state.items()}


def _within(have: Indexes, want: Indexes) -> Indexes:
    """Where the wanted indexes stand among those that are there; both are ascending."""
    return tuple(
        inner if outer is None or inner is None else torch.searchsorted(outer, inner)
        for outer, inner in zip(have, want, strict=True)
    )
