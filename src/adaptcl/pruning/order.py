"""The two types of pruning order, and custom orders that the user brings.

An order gives every unit an importance; the least important units are cut first. The paper finds
that an order works in distributed pruning if it is *identical* for all workers and *constant* over
time. An order that needs no worker's data or weights can be both, and the server computes it. An
order that needs them is computed by each worker.

A custom order is named `package.module:Class`. If the class has an attribute `frozen`, the server
computes it. What it returns is checked at once: a wrong size or NaN would otherwise show up only
where units are cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from adaptcl.custom import custom_class
from adaptcl.data import Samples
from adaptcl.errors import SettingError, describe_type
from adaptcl.units import Kept, State, UnitMap


@dataclass(frozen=True)
class ServerView:
    """What the server knows when it computes an order for one worker."""

    units: UnitMap
    state: State  # the whole global model
    worker: int
    pruning: int  # the number of this pruning in the run, counted from 0
    seed: int


class LossOfModel(Protocol):
    """The loss that a worker trains for (`training/objective.py`)."""

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


class ServerOrder(Protocol):
    """An order that depends on no worker's data and no worker's weights."""

    summary: str
    frozen: bool
    """Whether it is computed once, at the first pruning, and then used for all prunings."""

    def importance(self, view: ServerView) -> Tensor:
        """Importance of every unit of the original model."""
        ...


class WorkerOrder(Protocol):
    """An order that depends on the worker's data or weights."""

    summary: str

    def importance(self, view: WorkerView) -> Tensor:
        """Importance of every unit of the original model; units not kept may hold anything."""
        ...


def custom_order(name: str) -> ServerOrder | WorkerOrder:
    """The order of the class `package.module:Class`, which is built without arguments."""
    found = custom_class(name, "a pruning order", (), WorkerOrder)
    custom = _CustomServerOrder if hasattr(found, "frozen") else _CustomOrder
    return custom(name, found())


class _CustomOrder:
    """A custom order whose result is checked."""

    def __init__(self, name: str, order: Any) -> None:
        self.summary: str = order.summary
        self._name = name
        self._order = order

    def importance(self, view: Any) -> Tensor:
        return _checked(self._name, self._order.importance(view), view.units)


class _CustomServerOrder(_CustomOrder):
    """The same for an order that the server computes."""

    def __init__(self, name: str, order: Any) -> None:
        super().__init__(name, order)
        self.frozen = bool(order.frozen)


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
