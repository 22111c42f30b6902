"""Means by unit, gathered from measurements on rows and channels of a sub-model.

A unit may have several rows in a tensor, a channel may belong to no unit, and a layer may offer
nothing to measure. Every order that measures needs the same answers to that, so they are here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from adaptcl.units import FIXED, UnitMap


class Tally:
    """Adds up measured values by unit of the original model."""

    def __init__(self, units: UnitMap) -> None:
        self._sum = torch.zeros(units.count, dtype=torch.float64)
        self._times = torch.zeros(units.count, dtype=torch.float64)

    def add(self, ids: Tensor, values: Tensor) -> None:
        """Values in the order of `ids`, one row of them or several; `FIXED` ids are left out.

        A value that is no number counts as 0 and an infinite one as the largest float, so that
        a diverged worker still gets an order.
        """
        rows = torch.nan_to_num(values.detach().float()).reshape(-1, len(ids)).cpu().double()
        known = ids != FIXED
        self._sum.index_add_(0, ids[known], rows.sum(0)[known])
        self._times.index_add_(0, ids[known], torch.full_like(self._sum, len(rows))[ids[known]])

    @property
    def measured(self) -> Tensor:
        """Which units have a value."""
        return self._times > 0

    def means(self) -> Tensor:
        """The mean of each unit; units nothing was measured of get the mean of the others."""
        means = self._sum / self._times.clamp_min(1)
        others = means[self.measured].mean() if bool(self.measured.any()) else torch.tensor(1.0)
        return torch.where(self.measured, means, others.double()).float()
