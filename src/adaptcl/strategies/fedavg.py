"""FedAVG: all workers train the whole model and the server averages (McMahan et al., 2017).

The published method does not treat batch norm. Here the standard deviations of units are averaged
instead of their variances, as in all strategies with a barrier, so that results are comparable.
"""

from __future__ import annotations

from typing import ClassVar

from adaptcl.strategies.synchronous import Synchronous


class FedAVGS(Synchronous):
    """FedAVG with sparse training: the baseline that AdaptCL is measured against."""

    summary = "whole model for everybody, sparse training; waits for the slowest"
    # Everybody holds every unit, so the rules for missing units make no difference.
    unused: ClassVar[tuple[str, ...]] = (*Synchronous.unused, "aggregation", "fading")


class FedAVG(FedAVGS):
    """FedAVG with plain training, as it was published: no group lasso."""

    summary = "whole model for everybody, plain training; waits for the slowest"
    unused: ClassVar[tuple[str, ...]] = (*FedAVGS.unused, "strength")
