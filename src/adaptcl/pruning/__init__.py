"""Pruning: the orders in which units are cut, and how far a pruned rate cuts along them.

A new order is one file and one line in `SERVER_ORDERS` or `WORKER_ORDERS`. A custom order needs
neither: the user names it by `package.module:Class`.
"""

from __future__ import annotations

from collections.abc import Mapping

from adaptcl.errors import SettingError
from adaptcl.pruning.budget import fit, grow, importance_lost, prune
from adaptcl.pruning.cig_bnscalor import BalancedBNscalor, CIGBNscalor
from adaptcl.pruning.index_orders import Index, NoAdjacent, NoConstant, NoIdentical
from adaptcl.pruning.order import ServerOrder, ServerView, WorkerOrder, WorkerView, custom_order
from adaptcl.pruning.similarity import mean_similarity
from adaptcl.pruning.worker_orders import FPGM, L1, HRank, Taylor
from adaptcl.settings import is_custom

SERVER_ORDERS: dict[str, ServerOrder] = {
    "index": Index(),
    "no-adjacent": NoAdjacent(),
    "no-identical": NoIdentical(),
    "no-constant": NoConstant(),
    "cig-bnscalor": CIGBNscalor(),
    "balanced-bnscalor": BalancedBNscalor(),
}
WORKER_ORDERS: dict[str, WorkerOrder] = {
    "l1": L1(),
    "taylor": Taylor(),
    "fpgm": FPGM(),
    "hrank": HRank(),
}
ORDERS: dict[str, ServerOrder | WorkerOrder] = {**SERVER_ORDERS, **WORKER_ORDERS}


def server_order(name: str) -> ServerOrder | None:
    """The order of that name, or None if workers compute it."""
    if is_custom(name):
        order = custom_order(name)
        return None if order.computed == "by-workers" else order
    _check_known(name)
    return SERVER_ORDERS.get(name)


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
    _check_known(name)
    if name not in WORKER_ORDERS:
        raise SettingError(
            f"The pruning order {name!r} is computed by the server, so the task must carry it; "
            f"workers compute {', '.join(WORKER_ORDERS)}."
        )
    return WORKER_ORDERS[name]


def custom_worker_orders(name: object) -> dict[str, WorkerOrder]:
    """The custom order of that name, by its name, if workers compute it; otherwise nothing."""
    if not is_custom(name):
        return {}
    order = custom_order(name)
    return {name: order} if order.computed == "by-workers" else {}


def _check_known(name: str) -> None:
    if name not in ORDERS:
        raise SettingError(f"There is no pruning order {name!r}; there are {', '.join(ORDERS)}.")


__all__ = [
    "ORDERS",
    "SERVER_ORDERS",
    "WORKER_ORDERS",
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
    "worker_order",
]
