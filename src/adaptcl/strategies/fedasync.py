"""FedAsync: mix every arriving model into the global one, stale ones less (Xie et al., 2019).

θ ← (1 − α_t) θ + α_t θ_w with α_t = α·(1 + τ)^−a. The staleness τ counts the merges between the
worker's pull and its arrival. It is 0 for a model that nobody overtook, which has the full weight
α. With a = 0 staleness does not count. The authors' third rule, a hinge, is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from adaptcl.settings import setting
from adaptcl.strategies.asynchronous import Asynchronous, AsynchronousSettings, mix
from adaptcl.training import Task, Update


@dataclass(frozen=True)
class FedAsyncSettings(AsynchronousSettings):
    """How the weight of an arriving model falls with its staleness."""

    mixing: float = setting(
        0.6, "weight of an arriving model that is not stale (α)", above=0, at_most=1
    )
    staleness_exponent: float = setting(
        0.5, "how fast the weight falls with the staleness τ: α·(1+τ)^-exponent (a)", at_least=0
    )


class FedAsync(Asynchronous):
    """FedAsync with sparse training."""

    summary = "whole model for everybody, sparse training; mixes in each model as it comes"
    Settings: ClassVar[type[FedAsyncSettings]] = FedAsyncSettings
    settings: FedAsyncSettings

    def merge(self, update: Update, task: Task, staleness: int) -> None:
        weight = self.settings.mixing * float((1 + staleness) ** -self.settings.staleness_exponent)
        self.state = mix(self.state, update.state, weight)
