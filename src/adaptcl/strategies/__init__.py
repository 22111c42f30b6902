"""What the server decides: one file for each method, or for two that share most of it.

A new strategy is one file and one line here. A custom strategy needs neither: it is named as
`package.module:Class`.
"""

from __future__ import annotations

from typing import Any, Protocol

from adaptcl.custom import custom_class
from adaptcl.errors import SettingError
from adaptcl.settings import is_custom
from adaptcl.strategies.adaptcl import AdaptCL
from adaptcl.strategies.asynchronous import Asynchronous
from adaptcl.strategies.dc_asgd import DCASGD
from adaptcl.strategies.fedasync import FedAsync
from adaptcl.strategies.fedbuff import FedBuff
from adaptcl.strategies.fluid import FLuID
from adaptcl.strategies.heterofl import FedRolex, HeteroFL
from adaptcl.strategies.ssp import SSP
from adaptcl.strategies.strategy import Closed, Job, Reaction, Strategy
from adaptcl.strategies.synchronous import (
    FedAVG,
    FedAVGS,
    SubModelPlan,
    Synchronous,
    SynchronousSettings,
)


class StrategyClass(Protocol):
    """A class of strategies with the settings it declares."""

    summary: str

    @property
    def Settings(self) -> type[Any]:  # noqa: N802
        ...

    def __call__(self, job: Job, settings: Any) -> Strategy: ...


STRATEGIES: dict[str, type[Synchronous] | type[Asynchronous]] = {
    "fedavg": FedAVG,
    "fedavg-s": FedAVGS,
    "fedasync-s": FedAsync,
    "ssp-s": SSP,
    "dc-asgd-a-s": DCASGD,
    "adaptcl": AdaptCL,
    "heterofl": HeteroFL,
    "fedrolex": FedRolex,
    "fedbuff": FedBuff,
    "fluid": FLuID,
}


def strategy_class(name: str) -> StrategyClass:
    """The strategy of that name, or a custom one named as `package.module:Class`."""
    if name in STRATEGIES:
        return STRATEGIES[name]
    if not is_custom(name):
        raise SettingError(f"There is no strategy {name!r}; there are {', '.join(STRATEGIES)}.")
    custom: StrategyClass = custom_class(
        name, "a strategy", ("job", "settings"), StrategyClass, Strategy
    )
    return custom


__all__ = [
    "STRATEGIES",
    "Closed",
    "FedAVG",
    "Job",
    "Reaction",
    "Strategy",
    "StrategyClass",
    "SubModelPlan",
    "Synchronous",
    "SynchronousSettings",
    "strategy_class",
]
