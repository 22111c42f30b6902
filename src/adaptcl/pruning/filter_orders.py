"""Orders that look at the weights of a worker's filters: L1 and FPGM.

The authors prune each layer at a rate of its own. Here one order covers all layers, so values are
made comparable across layers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from adaptcl.pruning.measurements import UnitMeans, filters
from adaptcl.pruning.order import WorkerView


class L1:
    """The mean |w| of a unit's filter (Li et al. 2016, "Pruning Filters for Efficient ConvNets").

    The authors rank the filters of a layer by Σ|w|; the mean is comparable across layers.
    """

    summary = "mean absolute weight of the filter (Li et al. 2016)"

    def importance(self, view: WorkerView) -> Tensor:
        means = UnitMeans(view.units)
        for layer in filters(view):
            means.add(layer.ids, layer.rows.abs().mean(1))
        return means.by_unit()


class FPGM:
    """The distance of a unit's filter to the other filters of its layer.

    From He et al. 2019, "Filter Pruning via Geometric Median": a filter close to the geometric
    median of its layer can be replaced by the others, however large it is. As in the authors' code,
    closeness is the sum of the Euclidean distances to all filters of the layer: it is smallest near
    the median, and no median has to be computed. Divided by its mean, it is comparable across
    layers.
    """

    summary = "distance to the other filters of the layer (FPGM, He et al. 2019)"

    def importance(self, view: WorkerView) -> Tensor:
        means = UnitMeans(view.units)
        for layer in filters(view):
            # The faster way by a matrix product loses the small distances between near filters.
            distance = torch.cdist(
                layer.rows, layer.rows, compute_mode="donot_use_mm_for_euclid_dist"
            ).sum(1)
            mean = distance.mean()
            means.add(layer.ids, distance / mean if mean > 0 else torch.ones_like(distance))
        return means.by_unit()
