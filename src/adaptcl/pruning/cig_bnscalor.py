"""CIG-BNscalor, the paper's own order: constant, identical and global.

The BN scales of the aggregated global model at the first pruning order the units of all layers,
for all workers and for ever after. The scales depend on no worker's data, and since they multiply
whole feature maps they can be compared across layers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from adaptcl.pruning.order import ServerView
from adaptcl.pruning.tally import Tally
from adaptcl.units import FIXED


class CIGBNscalor:
    """|BN scale| of a unit in the global model; the mean of them if it passes several batch norms.

    Units without batch norm have no scale. They get the L2 norm of all they own, relative to the
    mean of their layer, times the mean |BN scale| of the model (1 if it has none): a unit that is
    average in its layer then stands beside an average scale.
    """

    summary = "BN scales of the global model at the first pruning (the paper's own order)"
    frozen = True

    def importance(self, view: ServerView) -> Tensor:
        """|BN scale| of every unit, or what stands in for it."""
        scales = _scales(view)
        # Units without a scale get the mean of the others here, and their share of it below.
        return scales.means() * torch.where(scales.measured, 1.0, _relative_norms(view))


def _scales(view: ServerView) -> Tally:
    tally = Tally(view.units)
    for slot in view.units.slots:
        if slot.owned and slot.tensor in view.units.bn_scales:
            tally.add(slot.ids, view.state[slot.tensor].abs())
    return tally


def _relative_norms(view: ServerView) -> Tensor:
    """L2 norm of all trained entries a unit owns, divided by the mean of its layer."""
    squares = torch.zeros(view.units.count, dtype=torch.float64)
    for slot in view.units.slots:
        if slot.owned and slot.tensor in view.units.parameters:
            entries = view.state[slot.tensor].movedim(slot.dim, 0).reshape(len(slot.ids), -1)
            known = slot.ids != FIXED
            sums = torch.nan_to_num(entries.cpu().double().square().sum(1))
            squares.index_add_(0, slot.ids[known], sums[known])
    norms = squares.sqrt()
    for layer in view.units.layers:
        here = slice(layer.units.start, layer.units.stop)
        mean = norms[here].mean()
        norms[here] = norms[here] / mean if mean > 0 else 1.0
    return norms.float()
