"""FedAVG: everybody trains the whole model, the server averages (McMahan et al., 2017).

The method was published without batch norm in view. Here the standard deviations of units are
averaged rather than their variances, as for all strategies with a barrier, so that they can be
compared; `bn_variance="variance"` averages every tensor alike.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from adaptcl.strategies.strategy import Job
from adaptcl.strategies.synchronous import Synchronous, SynchronousSettings


class FedAVGS(Synchronous):
    """FedAVG with sparse training: the baseline that AdaptCL is measured against."""

    summary = "whole model for everybody, sparse training; waits for the slowest"
    # Where everybody has every unit, all rules for missing ones come to the same.
    unused: ClassVar[tuple[str, ...]] = (*Synchronous.unused, "aggregation", "fading")


class FedAVG(FedAVGS):
    """FedAVG with plain training, as it was published: no group lasso."""

    summary = "whole model for everybody, plain training; waits for the slowest"
    unused: ClassVar[tuple[str, ...]] = (*FedAVGS.unused, "strength")

    def __init__(self, job: Job, settings: SynchronousSettings) -> None:
        super().__init__(replace(job, recipe=replace(job.recipe, strength=0.0)), settings)
