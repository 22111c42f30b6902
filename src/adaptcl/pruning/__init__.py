"""Pruning: the orders in which units are cut, and how far a pruned rate cuts along them.

A new order is one file and one line in `ORDERS`. A custom order needs neither: the user names it by
`package.module:Class`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adaptcl.errors import SettingError
from adaptcl.pruning.budget import fit, grow, importance_lost, prune
from adaptcl.pruning.cig_bnscalor import BalancedBNscalor, CIGBNscalor
from adaptcl.pruning.index_orders import Index, NoAdjacent, NoConstant, NoIdentical
from adaptcl.pruning.order import (
    Order,
    ServerOrder,
    ServerView,
    WorkerOrder,
    WorkerView,
    custom_order,
)
from adaptcl.pruning.similarity import mean_similarity
from adaptcl.pruning.worker_orders import FPGM, L1, HRank, Taylor
from adaptcl.settings import is_custom
from adaptcl.units import Layer, UnitMap

ORDERS: dict[str, Order[Any]] = {
    "index": Index(),
    "no-adjacent": NoAdjacent(),
    "no-identical": NoIdentical(),
    "no-constant": NoConstant(),
    "cig-bnscalor": CIGBNscalor(),
    "balanced-bnscalor": BalancedBNscalor(),
    "l1": L1(),
    "taylor": Taylor(),
    "fpgm": FPGM(),
    "hrank": HRank(),
}


def server_order(name: str) -> ServerOrder | None:
    """The order of that name, or None if workers compute it."""
    order = custom_order(name) if is_custom(name) else _known(name)
    return None if order.computed == "by-workers" else order


def worker_order(name: str, custom: Mapping[str, WorkerOrder] | None = None) -> WorkerOrder:
    """The order of that name, which must be one that workers compute.

    The name comes with a task, and a task may come from another machine. So nothing is imported
    here: the `custom` orders are those that the owner of this worker has named.
    """
    if custom and name in custom:
        return custom[name]
    if is_custom(name):
        raise SettingError(
            f"The server prunes by {name!r:.200}, but a worker imports only what its owner names."
        )
    order = _known(name)
    if order.computed != "by-workers":
        by_workers = [each for each, known in ORDERS.items() if known.computed == "by-workers"]
        raise SettingError(
            f"The pruning order {name!r} is computed by the server, so the task must carry it; "
            f"workers compute {', '.join(by_workers)}."
        )
    return order


def unmeasured_layers(name: str, units: UnitMap) -> list[Layer]:
    """The layers of which the order of that name measures nothing, if it tells."""
    tell = getattr(ORDERS.get(name), "unmeasured", None)
    return [] if tell is None else tell(units)


def custom_worker_orders(name: object) -> dict[str, WorkerOrder]:
    """The custom order of that name, by its name, if workers compute it; otherwise nothing."""
    if not is_custom(name):
        return {}
    order = custom_order(name)
    return {name: order} if order.computed == "by-workers" else {}


def _known(name: str) -> Order[Any]:
    if name not in ORDERS:
        raise SettingError(f"There is no pruning order {name!r}; there are {', '.join(ORDERS)}.")
    return ORDERS[name]


__all__ = [
    "ORDERS",
    "ServerOrder",
    "ServerView",
    "WorkerOrder",
    "WorkerView",
    "custom_order",
    "custom_worker_orders",
    "fit",
    "grow",
    "importance_lost",
    "mean_similarity",
    "prune",
    "server_order",
    "unmeasured_layers",
    "worker_order",
]
