"""Batch norm in training together with the ReLU and the halving max-pool behind it.

Convolutional networks do these three in a row, and each reads what the one before has written.
As one operation they read their input twice and write a quarter of it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from adaptcl.training.gpu.batch_norm import MOST_PARTS, WIDE, LaunchPlan
from adaptcl.training.gpu.kernels import batch_norm_kernels as sums_kernels
from adaptcl.training.gpu.kernels import batch_norm_pool_kernels as kernels

_BLOCK, _WARPS = 32, 8  # squares that a program handles together, and its warps


def batch_norm_pool(
    x: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    scale: Tensor,
    shift: Tensor,
    momentum: float,
    eps: float,
    *,
    relu: bool,
    bias: Tensor | None,
) -> Tensor:
    """As `batch_norm`, always with a ReLU, and the largest of each 2×2 square."""
    assert relu
    y: Tensor = _BatchNormPool.apply(  # type: ignore[no-untyped-call]
        x, running_mean, running_var, scale, shift, momentum, eps, bias
    )
    return y


class _BatchNormPool(Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        running_mean: Tensor,
        running_var: Tensor,
        scale: Tensor,
        shift: Tensor,
        momentum: float,
        eps: float,
        bias: Tensor | None,
    ) -> Tensor:
        images, channels, height, width = x.shape
        y = torch.empty(
            (images, channels, height // 2, width // 2),
            dtype=x.dtype,
            device=x.device,
            memory_format=torch.channels_last,
        )
        plan = LaunchPlan.in_parts(images * height * width, channels)
        sums = plan.sums(x.device)
        mean, root = torch.empty(2, channels, device=x.device)
        sums_kernels.batch_norm_sums[plan.sum_grid()](
            x, sums, plan.rows, channels, plan.stretch, BLOCK=128, WIDE=WIDE, num_warps=8
        )
        squares = LaunchPlan.in_parts(plan.rows // 4, channels)
        kernels.apply_and_pool[squares.grid()](
            x,
            y,
            sums,
            scale,
            shift,
            scale if bias is None else bias,
            running_mean,
            running_var,
            mean,
            root,
            plan.rows,
            squares.rows,
            width,
            channels,
            squares.share,
            plan.parts,
            momentum,
            eps,
            BIAS=bias is not None,
            PARTS=MOST_PARTS,
            BLOCK=_BLOCK,
            WIDE=WIDE,
            num_warps=_WARPS,
        )
        ctx.save_for_backward(x, scale, shift, mean, root)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, scale, shift, mean, root = ctx.saved_tensors
        channels, width = x.shape[1], x.shape[3]
        dy = dy.contiguous(memory_format=torch.channels_last)
        dx = torch.empty_like(x)
        rows = x.numel() // channels
        squares = LaunchPlan.in_parts(rows // 4, channels)
        sums = squares.sums(x.device)
        scale_gradient, shift_gradient = torch.empty(2, channels, device=x.device)
        kernels.pooled_gradient_sums[squares.sum_grid()](
            dy,
            x,
            sums,
            scale,
            shift,
            mean,
            root,
            squares.rows,
            width,
            channels,
            squares.stretch,
            BLOCK=_BLOCK,
            WIDE=WIDE,
            num_warps=_WARPS,
        )
        kernels.pooled_gradient[squares.grid()](
            dy,
            x,
            dx,
            sums,
            scale,
            shift,
            mean,
            root,
            scale_gradient,
            shift_gradient,
            rows,
            squares.rows,
            width,
            channels,
            squares.share,
            squares.parts,
            PARTS=MOST_PARTS,
            BLOCK=_BLOCK,
            WIDE=WIDE,
            num_warps=_WARPS,
        )
        return dx, None, None, scale_gradient, shift_gradient, None, None, None
