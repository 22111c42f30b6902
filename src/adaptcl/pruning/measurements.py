"""From measurements on rows and channels of a sub-model to one mean per unit.

Every order that measures something has the same three problems: a unit may have several rows in a
tensor, a channel may belong to no unit, and a layer may have nothing to measure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from adaptcl.pruning.order import WorkerView
from adaptcl.units import FIXED, Kept, Layer, Slot, UnitMap


class UnitMeans:
    """Collects measured values and averages them per unit of the original model."""

    def __init__(self, units: UnitMap) -> None:
        self._sum = torch.zeros(units.count, dtype=torch.float64)
        self._times = torch.zeros(units.count, dtype=torch.float64)

    def add(self, ids: Tensor, values: Tensor) -> None:
        """Add one or more rows of values, in the order of `ids`; `FIXED` ids are ignored.

        NaN counts as 0 and infinity as the largest float, so that a diverged worker still gets
        an order.
        """
        rows = torch.nan_to_num(values.detach().float()).reshape(-1, len(ids)).cpu().double()
        known = ids != FIXED
        self._sum.index_add_(0, ids[known], rows.sum(0)[known])
        self._times.index_add_(0, ids[known], torch.full_like(self._sum, len(rows))[ids[known]])

    @property
    def measured(self) -> Tensor:
        """Flags of the units that have a value."""
        return self._times > 0

    def by_unit(self) -> Tensor:
        """The mean of each unit; units without a value get the mean of the others."""
        means = self._sum / self._times.clamp_min(1)
        others = means[self.measured].mean() if bool(self.measured.any()) else torch.tensor(1.0)
        return torch.where(self.measured, means, others.double()).float()


@dataclass(frozen=True)
class Filters:
    """The filters of one layer, one per row."""

    rows: Tensor
    ids: Tensor  # the unit each row belongs to


def filters(view: WorkerView) -> Iterator[Filters]:
    """The filters in the worker's sub-model, for each layer that has any."""
    state = view.model.state_dict()
    for layer in view.units.layers:
        slot = filter_slot(view.units, layer)
        if slot is None:
            continue
        ids = units_of_rows(slot, layer, view.kept)
        of_layer = ids != FIXED
        rows = state[slot.tensor].movedim(slot.dim, 0).reshape(len(ids), -1)
        if bool(of_layer.any()):
            yield Filters(rows[of_layer.to(rows.device)].float(), ids[of_layer])


def filter_slot(units: UnitMap, layer: Layer) -> Slot | None:
    """The slot of a layer's filters: the weight of the module that the layer is named after.

    If the module has no `weight`, it is the first trained tensor that the units own.
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
    """The unit of each index of a slot in a sub-model; `FIXED` for units of other layers."""
    ids = slot.ids[(slot.ids == FIXED) | kept.cpu()[slot.ids.clamp_min(0)]]
    inside = (ids >= layer.units.start) & (ids < layer.units.stop)
    return torch.where(inside, ids, FIXED)
