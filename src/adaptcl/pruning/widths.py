"""Hardware-friendly widths: each layer keeps or gives up its units in whole blocks.

Tensor cores and vector registers take channels in blocks. A width that is no multiple of the block
costs as much as the next multiple, and often more, because the kernels made for whole blocks do
not fit and a slower one runs: on a GPU a sub-model of half the parameters and odd widths takes
longer to train than the whole model. But a block that is a large part of a model makes a coarse
tool of pruning: workers then end well beside the size that would make them equally fast, which
costs more than the block saves. So the blocks of narrow layers and of small models are smaller.
"""

from __future__ import annotations

import torch
from torch import Tensor

from adaptcl.units import UnitMap, parameters

_MOST_OF_MODEL = 0.02
"""A block has at most this share of the model's parameters: as fine as pruned-rate learning is,
by its default ρ_min."""

_MOST_OF_LAYER = 0.25
"""A block has at most this share of its layer's units, so that the layer can be cut at all."""


def blocks(units: UnitMap, multiple: int) -> Tensor:
    """How many units of each layer go together: the multiple, halved until a block is fine enough.

    Each layer's width is then a multiple of its block, or what it was from the beginning.
    """
    if multiple == 1:
        return torch.ones(len(units.layers), dtype=torch.int64)
    whole = parameters(units, units.everything())
    chosen = []
    for layer in units.layers:
        others = units.everything()
        others[layer.units.start] = False
        of_a_unit = (whole - parameters(units, others)) / whole
        block = multiple
        while block > 1 and (
            block * of_a_unit > _MOST_OF_MODEL or block > _MOST_OF_LAYER * len(layer.units)
        ):
            block //= 2
        chosen.append(block)
    return torch.tensor(chosen, dtype=torch.int64)
