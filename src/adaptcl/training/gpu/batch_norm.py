"""Batch norm in training together with the ReLU behind it, in two kernels a direction.

PyTorch takes seven or eight kernels, most of them too small to fill a GPU. Inputs are
channels-last images or plain rows; callers ask `fits` first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from adaptcl.training.gpu.kernels import batch_norm_kernels as kernels

WIDE = 64  # channels that one program takes: 128 bytes of a row in half precision
MOST_PARTS = 64  # most stretches that sums are taken over: every program adds them all up
_FEWEST_ROWS = 128  # fewest rows of a stretch
_PROGRAMS = 128
"""Programs that share the rest if there are enough rows. Each adds up all the sums first, so more
programs would read more sums than rows."""
_FEW_ROWS = 1024  # up to this many rows are handled by one program from beginning to end


@dataclass(frozen=True)
class LaunchPlan:
    """How rows and channels are divided among programs."""

    rows: int
    channels: int
    stretch: int  # rows that one sum goes over
    parts: int  # how many sums that makes; 0 if there are few rows

    @classmethod
    def of(cls, x: Tensor) -> LaunchPlan:
        """For a batch norm by itself."""
        channels = x.shape[1]
        rows = x.numel() // channels
        return cls(rows, channels, rows, 0) if rows <= _FEW_ROWS else cls.in_parts(rows, channels)

    @classmethod
    def in_parts(cls, rows: int, channels: int) -> LaunchPlan:
        """With sums over stretches, even for few rows."""
        stretch = max(_FEWEST_ROWS, -(-rows // MOST_PARTS))
        return cls(rows, channels, stretch, -(-rows // stretch))

    @property
    def alone(self) -> bool:
        """Whether one program takes all rows of its channels."""
        return self.parts == 0

    def sums(self, device: torch.device) -> Tensor:
        """Memory for both sums of every stretch."""
        return torch.empty(max(1, self.parts), 2, self.channels, device=device)

    def sum_grid(self) -> tuple[int, int]:
        """The programs that take sums."""
        return -(-self.channels // WIDE), self.parts

    @property
    def share(self) -> int:
        """Rows that one program takes once the sums are there."""
        if self.alone:
            return self.rows
        per_channels = _PROGRAMS // -(-self.channels // WIDE)
        return max(_FEWEST_ROWS, -(-self.rows // max(1, per_channels)))

    def grid(self) -> tuple[int, int]:
        """The programs that do the rest."""
        wide = 16 if self.alone else WIDE
        return -(-self.channels // wide), -(-self.rows // self.share)

    def shape(self) -> dict[str, Any]:
        """Compile-time arguments of the kernels that need the sums."""
        if self.alone:
            return {"ALONE": True, "PARTS": 1, "BLOCK": 128, "WIDE": 16, "num_warps": 4}
        block = {"BLOCK": 64, "WIDE": WIDE, "num_warps": 8}
        return {"ALONE": False, "PARTS": MOST_PARTS, **block}


def fits(x: Tensor) -> bool:
    """Whether the kernels can take this input."""
    if not x.is_cuda or x.dtype not in (torch.float32, torch.bfloat16) or x.numel() >= 2**31:
        return False
    if x.dim() == 4:
        return x.is_contiguous(memory_format=torch.channels_last)
    return x.dim() == 2 and x.is_contiguous()


def batch_norm(
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
    """Normalise by the batch and update the running statistics; with ReLU if asked.

    `bias` is the bias of the layer before, which was left out: batch norm would subtract it
    again, so that only the running mean needs it.
    """
    y: Tensor = _BatchNorm.apply(  # type: ignore[no-untyped-call]
        x, running_mean, running_var, scale, shift, momentum, eps, relu, bias
    )
    return y


class _BatchNorm(Function):
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
        relu: bool,
        bias: Tensor | None,
    ) -> Tensor:
        plan = LaunchPlan.of(x)
        y = torch.empty_like(x)
        sums = plan.sums(x.device)
        mean, root = torch.empty(2, plan.channels, device=x.device)
        if not plan.alone:
            kernels.batch_norm_sums[plan.sum_grid()](
                x, sums, plan.rows, plan.channels, plan.stretch, BLOCK=128, WIDE=WIDE, num_warps=8
            )
        kernels.batch_norm_apply[plan.grid()](
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
            plan.channels,
            plan.share,
            plan.parts,
            momentum,
            eps,
            RELU=relu,
            BIAS=bias is not None,
            **plan.shape(),
        )
        ctx.relu = relu
        ctx.save_for_backward(x, scale, shift, mean, root)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, scale, shift, mean, root = ctx.saved_tensors
        plan = LaunchPlan.of(x)
        layout = torch.channels_last if x.dim() == 4 else torch.contiguous_format
        dy = dy.contiguous(memory_format=layout)
        dx = torch.empty_like(x)
        sums = plan.sums(x.device)
        scale_gradient, shift_gradient = torch.empty(2, plan.channels, device=x.device)
        if not plan.alone:
            kernels.batch_norm_gradient_sums[plan.sum_grid()](
                dy,
                x,
                sums,
                scale,
                shift,
                mean,
                root,
                plan.rows,
                plan.channels,
                plan.stretch,
                RELU=ctx.relu,
                BLOCK=64,
                WIDE=WIDE,
                num_warps=8,
            )
        kernels.batch_norm_gradient[plan.grid()](
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
            plan.rows,
            plan.channels,
            plan.share,
            plan.parts,
            RELU=ctx.relu,
            **plan.shape(),
        )
        return dx, None, None, scale_gradient, shift_gradient, None, None, None, None
