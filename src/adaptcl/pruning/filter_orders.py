"""L1 norm of the filters (Li et al. 2016, "Pruning Filters for Efficient ConvNets")."""

from __future__ import annotations

import torch
from torch import Tensor

from adaptcl.pruning.filters import Tally, filters
from adaptcl.pruning.order import WorkerView


class L1:
    """Σ|w| over a unit's filter, as the authors rank the filters of a layer.

    They choose a rate for each layer; here one order goes through all layers, so the sum is
    divided by the number of elements.
    """

    summary = "mean absolute weight of the filter (Li et al. 2016)"

    def importance(self, view: WorkerView) -> Tensor:
        """The mean |w| of each unit's filter."""
        tally = Tally(view.units)
        for layer in filters(view):
            tally.add(layer.ids, layer.rows.abs().mean(1))
        return tally.means()


# FPGM (He et al. 2019, "Filter Pruning via Geometric Median").
#
# A filter close to the geometric median of its layer can be replaced by the others, however large
# it is. As in the authors' code, closeness is the sum of the Euclidean distances to all filters
# of the layer: that sum is smallest near the median, and no median has to be computed.


class FPGM:
    """Distance of a unit's filter to the other filters of its layer.

    The authors prune every layer at one rate; here one order goes through all layers, so the
    distances of a layer are divided by their mean.
    """

    summary = "distance to the other filters of the layer (FPGM, He et al. 2019)"

    def importance(self, view: WorkerView) -> Tensor:
        """Summed distances of each unit's filter, on average 1 in every layer."""
        tally = Tally(view.units)
        for layer in filters(view):
            # The faster way over a matrix product loses the small distances between near filters.
            distance = torch.cdist(
                layer.rows, layer.rows, compute_mode="donot_use_mm_for_euclid_dist"
            ).sum(1)
            mean = distance.mean()
            tally.add(layer.ids, distance / mean if mean > 0 else torch.ones_like(distance))
        return tally.means()
