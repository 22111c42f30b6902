"""A pruning order of the user's own, named `package.module:Class`.

Whether the server or each worker computes it follows from the class: one that says whether it is
`frozen` is the server's. What it gives back is checked, as an order that is too short or holds no
numbers would be found out only where units are cut.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from adaptcl.errors import SettingError
from adaptcl.kinds import kind_of
from adaptcl.own_code import own_class
from adaptcl.pruning.order import ServerOrder, ServerView, WorkerOrder, WorkerView
from adaptcl.units import UnitMap


def own_order(name: str) -> ServerOrder | WorkerOrder:
    """The order that a class leads to, made from nothing."""
    found = own_class(name, "a pruning order", (), WorkerOrder)
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
            f"The pruning order {name} gives {kind_of(importance)}{shape}, but it must give a "
            f"Tensor with one number for each of the {units.count} units."
        )
    plain = importance.detach().float().cpu()
    if not bool(torch.isfinite(plain).all()):
        raise SettingError(f"The pruning order {name} gives an importance that is not finite.")
    return plain
