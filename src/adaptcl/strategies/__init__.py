"""What the server decides: one file a method.

A strategy is one file and one line here.
"""

from __future__ import annotations

from typing import Any, Protocol

from adaptcl.strategies.adaptcl import AdaptCL
from adaptcl.strategies.fedavg import FedAVG, FedAVGS
from adaptcl.strategies.strategy import Closed, Job, Reaction, Strategy


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


STRATEGIES: dict[str, StrategyClass] = {
    "fedavg": FedAVG,
    "fedavg-s": FedAVGS,
    "adaptcl": AdaptCL,
}

__all__ = ["STRATEGIES", "Closed", "Job", "Reaction", "Strategy", "StrategyClass"]
