"""FedAsync: mix every arriving model into the global one, stale ones less (Xie et al., 2019).

θ ← (1 − α_t) θ + α_t θ_w with α_t = α·s(τ). The staleness τ counts the merges between the worker's
pull and its arrival. It is 0 for a model that nobody overtook, which has the full weight α.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from adaptcl.settings import With, setting
from adaptcl.strategies.asynchronous import Asynchronous, AsynchronousSettings, mix
from adaptcl.training import Task, Update


@dataclass(frozen=True)
class FedAsyncSettings(AsynchronousSettings):
    """How the weight of an arriving model falls with its staleness."""

    mixing: float = setting(
        0.6, "weight of an arriving model that is not stale (α)", above=0, at_most=1
    )
    staleness_weight: str = setting(
        "polynomial",
        "how the weight falls with the staleness τ: polynomial as (1+τ)^-exponent, hinge as "
        "1/(slope·(τ-hinge)+1) beyond the hinge, constant not at all",
        choices=("polynomial", "hinge", "constant"),
    )
    staleness_exponent: float = setting(
        0.5,
        "polynomial: the exponent (a)",
        at_least=0,
        condition=With("staleness_weight", "polynomial"),
    )
    staleness_slope: float = setting(
        10.0,
        "hinge: how fast the weight falls (a)",
        at_least=0,
        condition=With("staleness_weight", "hinge"),
    )
    staleness_hinge: int = setting(
        4,
        "hinge: the largest staleness with full weight (b)",
        at_least=0,
        condition=With("staleness_weight", "hinge"),
    )


class FedAsync(Asynchronous):
    """FedAsync with sparse training."""

    summary = "whole model for everybody, sparse training; mixes in each model as it comes"
    Settings: ClassVar[type[FedAsyncSettings]] = FedAsyncSettings
    settings: FedAsyncSettings

    def merge(self, update: Update, task: Task, staleness: int) -> None:
        weight = self.settings.mixing * staleness_weight(staleness, self.settings)
        self.state = mix(self.state, update.state, weight)


def staleness_weight(staleness: int, settings: FedAsyncSettings) -> float:
    """s(τ): the share of the full weight for a model of this staleness, at most 1."""
    if settings.staleness_weight == "polynomial":
        return float((1 + staleness) ** -settings.staleness_exponent)
    if settings.staleness_weight == "hinge":
        beyond = max(0, staleness - settings.staleness_hinge)
        return 1 / (settings.staleness_slope * beyond + 1)
    return 1.0
