"""L1 norm of the filters (Li et al. 2016, "Pruning Filters for Efficient ConvNets")."""

from __future__ import annotations

from torch import Tensor

from adaptcl.pruning.filters import filters
from adaptcl.pruning.order import WorkerView
from adaptcl.pruning.tally import Tally


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
