"""Operations on activations between layers: dropout, and the usual max-pool, 2×2 with stride 2.

Dropout draws by a seed and a count that lie on the GPU, for `task_dropout.py`. For a max-pool
PyTorch writes eight bytes for each square to remember where its maximum was. Here the backward pass
searches again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from adaptcl.training.gpu.kernels import activation_kernels as kernels

_BLOCK = 512  # entries that one program drops
_SQUARES, _WIDE = 32, 64  # squares of a program, and channels of each


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
        num_warps=4,
    )
    return y, mask


def halves(x: Tensor) -> bool:
    """Whether the kernels can take these images."""
    return (
        x.is_cuda
        and x.dim() == 4
        and x.dtype in (torch.float32, torch.bfloat16)
        and x.is_contiguous(memory_format=torch.channels_last)
        and x.shape[2] % 2 == 0
        and x.shape[3] % 2 == 0
        and 0 < x.numel() < 2**31
    )


def halve(x: Tensor) -> Tensor:
    """The largest of each 2×2 square of channels-last images."""
    y: Tensor = _Halve.apply(x)  # type: ignore[no-untyped-call]
    return y


class _Halve(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        images, channels, height, width = x.shape
        half = (images, channels, height // 2, width // 2)
        y = torch.empty(half, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
        kernels.halve[_grid(y)](
            x,
            y,
            y.numel() // channels,
            height,
            width,
            channels,
            SQUARES=_SQUARES,
            WIDE=_WIDE,
            num_warps=4,
        )
        # Not the result: a later operation may change it in place.
        ctx.save_for_backward(x)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        _, channels, height, width = x.shape
        dy = dy.contiguous(memory_format=torch.channels_last)
        dx = torch.empty_like(x)
        kernels.halve_gradient[_grid(dy)](
            dy,
            x,
            dx,
            dy.numel() // channels,
            height,
            width,
            channels,
            SQUARES=_SQUARES,
            WIDE=_WIDE,
            num_warps=4,
        )
        return dx


def _grid(y: Tensor) -> tuple[int]:
    channels = y.shape[1]
    return (-(-(y.numel() // channels) // _SQUARES) * -(-channels // _WIDE),)
