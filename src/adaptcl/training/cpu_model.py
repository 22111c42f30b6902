"""A model as a CPU computes it fastest, in the memory layout that was found to be safe for it."""

from __future__ import annotations

import torch
from torch import nn

from adaptcl.training.layout import in_layout
from adaptcl.training.pooling import pool_by_halves, pool_channels_last
from adaptcl.training.small_images import skip_padding


def quickened(model: nn.Module, layout: torch.memory_format) -> nn.Module:
    """The same model, changed in place; it computes what it did, to the last few bits."""
    if layout is torch.channels_last:
        return skip_padding(pool_channels_last(in_layout(model, layout)))
    return pool_by_halves(model)
