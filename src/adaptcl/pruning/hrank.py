"""HRank (Lin et al. 2020, "HRank: Filter Pruning using High-Rank Feature Map").

A feature map of low rank carries little information. The authors find the average rank of a map
nearly the same for any few batches of images, so a few batches are enough.
"""

from __future__ import annotations

import torch
from torch import Tensor

from adaptcl.pruning.feature_maps import ACTIVATIONS, BATCH_NORM, feature_maps
from adaptcl.pruning.order import WorkerView
from adaptcl.pruning.tally import Tally

_BATCHES = 4


class HRank:
    """Mean rank of a unit's feature maps after batch norm and activation.

    The authors prune every layer at a rate chosen for it; here one order goes through all layers,
    so a rank is divided by the highest possible one. A neuron's map is a single number: its mean
    rank is the share of samples for which it is not zero.
    """

    summary = "mean rank of the feature maps (HRank, Lin et al. 2020)"

    def importance(self, view: WorkerView) -> Tensor:
        """Mean over samples of a few batches, from 0 (always zero) to 1 (always of full rank)."""
        tally = Tally(view.units)
        with torch.no_grad():
            for recorded, _, _ in feature_maps(view, _BATCHES, BATCH_NORM | ACTIVATIONS):
                for each in recorded:
                    tally.add(each.ids, _relative_rank(each.maps(each.values)))
        return tally.means()


def _relative_rank(maps: Tensor) -> Tensor:
    full = min(maps.shape[2:])
    # The decomposition fails on what is not finite; a diverged worker still gets an order.
    finite = torch.nan_to_num(maps.float(), posinf=0.0, neginf=0.0)
    if full == 1:
        return (finite != 0).any(-1).any(-1).float()
    ranks: Tensor = torch.linalg.matrix_rank(finite)
    return ranks / full
