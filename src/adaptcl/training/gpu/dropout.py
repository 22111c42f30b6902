"""Dropout by a seed and a count that lie on the GPU, for `task_dropout.py`."""

from __future__ import annotations

import torch
from torch import Tensor

from adaptcl.training.gpu.kernels import dropout_kernels as kernels

_BLOCK, _WARPS = 512, 4


def drop(
    x: Tensor, probability: float, scale: float, dice: Tensor, number: int
) -> tuple[Tensor, Tensor]:
    """The entries times `scale`, some of them set to zero, and a mask of those that are left."""
    channels, area = 1, max(1, x.numel())
    if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last):
        channels, area = x.shape[1], x.shape[2] * x.shape[3]
    else:
        x = x.contiguous()
    y = torch.empty_like(x)
    mask = torch.empty_like(x, dtype=torch.bool)
    kernels.drop[-(-x.numel() // _BLOCK),](
        x,
        y,
        mask.view(torch.int8),
        dice,
        x.numel(),
        channels,
        area,
        number,
        probability,
        scale,
        BLOCK=_BLOCK,
        num_warps=_WARPS,
    )
    return y, mask
