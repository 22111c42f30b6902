"""The two kinds of pruning order: those the server knows, and those only a worker can know.

An order gives every unit an importance; the least important are cut first. The paper's finding
is that an order works in distributed pruning if it is *identical* for all workers and *constant*
over time. An order that looks at neither a worker's data nor a worker's weights can be both, and
the server computes it; one that does look at them is computed by each worker for itself.
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
    """What the server can look at when it decides an order for one worker."""

    units: UnitMap
    state: State
    """The aggregated global model, whole."""
    worker: int
    pruning: int
    """The number of this pruning in the run, counted from 0."""
    seed: int


@dataclass(frozen=True)
class WorkerView:
    """What a worker can look at when it decides its own order."""

    units: UnitMap
    model: nn.Module
    """The worker's sub-model as it is trained so far, physically cut to `kept`."""
    kept: Kept
    samples: Samples
    batch_size: int
    seed: int


class ServerOrder(Protocol):
    """An order that depends on no worker's data and no worker's weights."""

    summary: str
    frozen: bool
    """True: computed once, at the first pruning, and used for all workers ever after."""

    def importance(self, view: ServerView) -> Tensor:
        """Importance of every unit of the original model."""
        ...


class WorkerOrder(Protocol):
    """An order that depends on the worker's own data or weights."""

    summary: str

    def importance(self, view: WorkerView) -> Tensor:
        """Importance of every unit of the original model; units not kept may hold anything."""
        ...


# A pruning order of the user's own, named `package.module:Class`.
#
# Whether the server or each worker computes it follows from the class: one that says whether it
# is `frozen` is the server's. What it gives back is checked, as an order that is too short or
# holds no numbers would be found out only where units are cut.


def custom_order(name: str) -> ServerOrder | WorkerOrder:
    """The order that a class leads to, made from nothing."""
    found = custom_class(name, "a pruning order", (), WorkerOrder)
    return _OwnServerOrder(name, found()) if hasattr(found, "frozen") else _OwnOrder(name, found())


class _OwnOrder:
    """As each worker computes it."""

    def __init__(self, name: str, order: Any) -> None:
        self.summary: str = order.summary
        self._name = name
        self._order = order

    def importance(self, view: WorkerView) -> Tensor:
        """Importance of every unit of the original model, checked."""
        return _checked(self._name, self._order.importance(view), view.units)


class _OwnServerOrder:
    """As the server computes it."""

    def __init__(self, name: str, order: Any) -> None:
        self.summary: str = order.summary
        self.frozen = bool(order.frozen)
        self._name = name
        self._order = order

    def importance(self, view: ServerView) -> Tensor:
        """Importance of every unit of the original model, checked."""
        return _checked(self._name, self._order.importance(view), view.units)


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
