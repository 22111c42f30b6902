"""What the server decides: one file a method.

A strategy is one file and one line here; one of a user's own needs neither, it goes by
`package.module:Class`.
"""

from __future__ import annotations

from typing import Any, Protocol

from adaptcl.custom import custom_class
from adaptcl.errors import SettingError
from adaptcl.settings import is_custom
from adaptcl.strategies.adaptcl.server import AdaptCL
from adaptcl.strategies.dc_asgd import DCASGD
from adaptcl.strategies.fedasync import FedAsync
from adaptcl.strategies.fedavg import FedAVG, FedAVGS
from adaptcl.strategies.fedbuff import FedBuff
from adaptcl.strategies.fedrolex import FedRolex
from adaptcl.strategies.heterofl import HeteroFL
from adaptcl.strategies.ssp import SSP
from adaptcl.strategies.strategy import Closed, Job, Reaction, Strategy
from adaptcl.strategies.synchronous import SubModelPlan, Synchronous, SynchronousSettings


class StrategyClass(Protocol):
    """A class of strategies, which says what can be set about it."""

    summary: str

    @property
    def Settings(self) -> type[Any]:  # noqa: N802
        """The group of settings it is made from."""
        ...

    def __call__(self, job: Job, settings: Any) -> Strategy:
        """A strategy for this job."""
        ...


class ShippedStrategyClass(StrategyClass, Protocol):
    """One of this package's, of which is known what it does with settings that it shares."""

    @property
    def unused(self) -> tuple[str, ...]:
        """Settings that it has, as others do, and no use for."""
        ...


STRATEGIES: dict[str, ShippedStrategyClass] = {
    "fedavg": FedAVG,
    "fedavg-s": FedAVGS,
    "fedasync-s": FedAsync,
    "ssp-s": SSP,
    "dc-asgd-a-s": DCASGD,
    "adaptcl": AdaptCL,
    "heterofl": HeteroFL,
    "fedrolex": FedRolex,
    "fedbuff": FedBuff,
}


def strategy_class(name: str) -> StrategyClass:
    """The strategy of that name, or the user's own that a `package.module:Class` leads to."""
    if name in STRATEGIES:
        return STRATEGIES[name]
    if not is_custom(name):
        raise SettingError(f"There is no strategy {name!r}; there are {', '.join(STRATEGIES)}.")
    own: StrategyClass = custom_class(
        name, "a strategy", ("job", "settings"), StrategyClass, Strategy
    )
    return own


__all__ = [
    "STRATEGIES",
    "Closed",
    "Job",
    "Reaction",
    "Strategy",
    "StrategyClass",
    "SubModelPlan",
    "Synchronous",
    "SynchronousSettings",
    "strategy_class",
]
