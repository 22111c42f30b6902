"""The filters of a sub-model: what each unit's own module multiplies its input with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from adaptcl.pruning.order import WorkerView
from adaptcl.units import FIXED, Kept, Layer, Slot, UnitMap


@dataclass(frozen=True)
class Filters:
    """The filters of one layer, one a row."""

    rows: Tensor
    ids: Tensor
    """The unit each row belongs to."""


def filters(view: WorkerView) -> Iterator[Filters]:
    """The filters of each layer that has any, as they are in the worker's sub-model."""
    state = view.model.state_dict()
    for layer in view.units.layers:
        slot = filter_slot(view.units, layer)
        if slot is None:
            continue
        ids = units_of_rows(slot, layer, view.kept)
        own = ids != FIXED
        rows = state[slot.tensor].movedim(slot.dim, 0).reshape(len(ids), -1)
        if bool(own.any()):
            yield Filters(rows[own.to(rows.device)].float(), ids[own])


def filter_slot(units: UnitMap, layer: Layer) -> Slot | None:
    """Where a layer's filters are: the weight of the module the layer is named after.

    A module may call its weight otherwise; then it is the first trained tensor the units own.
    """
    owned = [s for s in units.slots if s.owned and s.tensor in units.parameters]
    for slot in owned:
        if slot.tensor == f"{layer.name}.weight":
            return slot
    for slot in owned:
        if any(unit in layer.units for unit in slot.ids.tolist()):
            return slot
    return None


def units_of_rows(slot: Slot, layer: Layer, kept: Kept) -> Tensor:
    """The unit of every index left of a slot in a sub-model; `FIXED` if it is none of the layer."""
    ids = slot.ids[(slot.ids == FIXED) | kept.cpu()[slot.ids.clamp_min(0)]]
    inside = (ids >= layer.units.start) & (ids < layer.units.stop)
    return torch.where(inside, ids, FIXED)
