"""Taylor: Molchanov et al. 2017, "Pruning Convolutional Neural Networks for Resource Efficient
Inference".

How much the loss changes when a feature map is set to zero, to first order: the sum over the map
of activation times gradient. It is the same before and after a ReLU, which passes both or neither.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from adaptcl.pruning.feature_maps import BATCH_NORM, feature_maps
from adaptcl.pruning.order import WorkerView
from adaptcl.pruning.tally import Tally

_BATCHES = 4


class Taylor:
    """|Σ activation × gradient| of a unit's feature map, averaged over samples.

    As the authors do, the values of each layer are divided by their L2 norm before layers are
    compared. Gradients are taken with respect to the maps alone: those of the parameters, which
    the optimiser may be using, are never touched.
    """

    summary = "change of the loss without the unit, to first order (Taylor, Molchanov et al. 2017)"

    def importance(self, view: WorkerView) -> Tensor:
        """Mean over samples of a few batches, normalised by layer."""
        tally = Tally(view.units)
        with torch.enable_grad():
            for recorded, output, labels in feature_maps(view, _BATCHES, BATCH_NORM):
                if not recorded or not output.requires_grad:
                    continue
                # Summed, so that a sample's gradient does not depend on the size of its batch.
                loss = F.cross_entropy(output, labels, reduction="sum")
                gradients = torch.autograd.grad(
                    loss, [each.values for each in recorded], materialize_grads=True
                )
                for each, gradient in zip(recorded, gradients, strict=True):
                    effect = each.maps(each.values.detach() * gradient).sum((2, 3))
                    tally.add(*_together(each.ids, effect))
        return _normalised(tally.means(), view)


def _together(ids: Tensor, effect: Tensor) -> tuple[Tensor, Tensor]:
    """|Σ effect| of a unit's channels: cutting the unit zeroes all of them at once."""
    found, position = torch.unique(ids, return_inverse=True)
    sums = effect.new_zeros(len(effect), len(found))
    return found, sums.index_add_(1, position.to(effect.device), effect).abs_()


def _normalised(importance: Tensor, view: WorkerView) -> Tensor:
    normalised = importance.clone()
    for layer in view.units.layers:
        here = slice(layer.units.start, layer.units.stop)
        norm = torch.linalg.vector_norm(importance[here][view.kept[here]])
        if norm > 0:
            normalised[here] /= norm
    return normalised
