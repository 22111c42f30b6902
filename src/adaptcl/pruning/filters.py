"""Means by unit, gathered from measurements on rows and channels of a sub-model.

A unit may have several rows in a tensor, a channel may belong to no unit, and a layer may offer
nothing to measure. Every order that measures needs the same answers to that, so they are here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from adaptcl.pruning.order import WorkerView
from adaptcl.units import FIXED, Kept, Layer, Slot, UnitMap


class Tally:
    """Adds up measured values by unit of the original model."""

    def __init__(self, units: UnitMap) -> None:
        self._sum = torch.zeros(units.count, dtype=torch.float64)
        self._times = torch.zeros(units.count, dtype=torch.float64)

    def add(self, ids: Tensor, values: Tensor) -> None:
        """Values in the order of `ids`, one row of them or several; `FIXED` ids are left out.

        A value that is no number counts as 0 and an infinite one as the largest float, so that
        a diverged worker still gets an order.
        """
        rows = torch.nan_to_num(values.detach().float()).reshape(-1, len(ids)).cpu().double()
        known = ids != FIXED
        self._sum.index_add_(0, ids[known], rows.sum(0)[known])
        self._times.index_add_(0, ids[known], torch.full_like(self._sum, len(rows))[ids[known]])

    @property
    def measured(self) -> Tensor:
        """Which units have a value."""
        return self._times > 0

    def means(self) -> Tensor:
        """The mean of each unit; units nothing was measured of get the mean of the others."""
        means = self._sum / self._times.clamp_min(1)
        others = means[self.measured].mean() if bool(self.measured.any()) else torch.tensor(1.0)
        return torch.where(self.measured, means, others.double()).float()


# The filters of a sub-model: what each unit's own module multiplies its input with.


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
