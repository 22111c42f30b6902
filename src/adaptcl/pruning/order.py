"""The two types of pruning order, and custom orders that the user brings.

An order gives every unit an importance; the least important units are cut first. The paper finds
that an order works in distributed pruning if it is *identical* for all workers and *constant* over
time. An order that needs no worker's data or weights can be both, and the server computes it. An
order that needs them is computed by each worker.

A custom order, named `package.module:Class`, is computed by the workers unless its `computed` says
otherwise. What it returns is checked at once: a wrong size or NaN would otherwise show up only
where units are cut.

Every order that measures something has the same three problems: a unit may have several rows in a
tensor, a channel may belong to no unit, and a layer may have nothing to measure. `UnitMeans` makes
one mean per unit of measurements on rows and channels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar, get_args

import torch
from torch import Tensor, nn

from adaptcl.custom import custom_class
from adaptcl.data import Samples
from adaptcl.errors import SettingError, describe_type
from adaptcl.units import FIXED, Kept, Layer, Slot, State, UnitMap

Computed = Literal["once", "every-pruning", "by-workers"]
"""Who computes an order: the server once for all prunings, the server anew for every pruning, or
each worker for itself."""
_View = TypeVar("_View", contravariant=True)


@dataclass(frozen=True)
class ServerView:
    """What the server knows when it computes an order for one worker."""

    units: UnitMap
    state: State  # the whole global model
    worker: int
    pruning: int  # the number of this pruning in the run, counted from 0
    seed: int


class LossOfModel(Protocol):
    """The loss that a worker trains for (`training/objectives/objective.py`)."""

    def outputs(self, model: nn.Module, inputs: Any, targets: Any) -> Any:
        """What the loss gets of a model."""
        ...

    def total_loss(self, outputs: Any, targets: Any) -> Tensor:
        """The loss summed over the samples of a batch."""
        ...


@dataclass(frozen=True)
class WorkerView:
    """What a worker knows when it computes its order."""

    units: UnitMap
    model: nn.Module  # the worker's trained sub-model, physically cut to `kept`
    kept: Kept
    samples: Samples
    batch_size: int
    seed: int
    objective: LossOfModel


class Order(Protocol[_View]):
    """An order, computed from what the server or a worker knows."""

    summary: str
    computed: Computed

    def importance(self, view: _View) -> Tensor:
        """Importance of every unit of the original model; units not kept may hold any
        finite number."""
        ...


ServerOrder = Order[ServerView]
"""An order that depends on no worker's data and no worker's weights."""
WorkerOrder = Order[WorkerView]


class _Required(Protocol):
    """What a custom order must have."""

    summary: str

    def importance(self, view: Any) -> Tensor: ...


def custom_order(name: str) -> CustomOrder:
    """The order of the class `package.module:Class`, which is built without arguments."""
    return CustomOrder(name, custom_class(name, "a pruning order", (), _Required)())


class CustomOrder:
    """A custom order whose result is checked."""

    def __init__(self, name: str, order: Any) -> None:
        self.summary: str = order.summary
        self.computed = _computed(name, order)
        self._name = name
        self._order = order

    def importance(self, view: Any) -> Tensor:
        return _checked(self._name, self._order.importance(view), view.units)


def _computed(name: str, order: Any) -> Computed:
    computed: Computed = getattr(order, "computed", "by-workers")
    if computed not in get_args(Computed):
        raise SettingError(
            f"{name} cannot be a pruning order: its `computed` is {computed!r:.200}, but it must "
            f"be one of {', '.join(get_args(Computed))}."
        )
    return computed


def _checked(name: str, importance: Any, units: UnitMap) -> Tensor:
    if not isinstance(importance, Tensor) or importance.shape != (units.count,):
        shape = f" of shape {list(importance.shape)}" if isinstance(importance, Tensor) else ""
        raise SettingError(
            f"The pruning order {name} gives {describe_type(importance)}{shape}, but it must give "
            f"a Tensor with one number for each of the {units.count} units."
        )
    plain = importance.detach().float().cpu()
    if not bool(torch.isfinite(plain).all()):
        raise SettingError(f"The pruning order {name} gives an importance that is not finite.")
    return plain


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
        ids = units_left(slot.ids, layer, view.kept)
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


def units_left(ids: Tensor, layer: Layer, kept: Kept) -> Tensor:
    """The unit of each index in a sub-model, by those of the whole model; `FIXED` for units of
    other layers."""
    ids = ids[(ids == FIXED) | kept.cpu()[ids.clamp_min(0)]]
    inside = (ids >= layer.units.start) & (ids < layer.units.stop)
    return torch.where(inside, ids, FIXED)
