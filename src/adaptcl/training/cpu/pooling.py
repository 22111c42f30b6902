"""Faster max-pooling on a CPU, in either memory layout.

With channels first, PyTorch's max-pool walks through each window and writes an 8-byte index for
it. In a small net that is a quarter of a training step. The usual pool, 2×2 with stride 2, is also
the maximum of neighbouring columns and then of neighbouring rows. Those are vector operations,
with one bit each to remember which was taken. Values and gradients equal PyTorch's to the last
bit, ties included (of two equal maxima the first in reading order counts).

With channels last, PyTorch's max-pool is a vector operation over the channels and faster than
that. But a gradient that comes from a flattened image has its channels first, and then the pool
copies what it reads and writes. It is enough to change the layout of the gradient before.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def pool_by_halves(model: nn.Module) -> nn.Module:
    """Make the max-pools of a model that halve an image faster, in place."""
    for module in model.modules():
        if type(module) is nn.MaxPool2d and _halves(module):
            # Still the same module: hooks, names and isinstance are unchanged.
            module.__class__ = HalvingMaxPool2d
    return model


def pool_channels_last(model: nn.Module) -> nn.Module:
    """Make the max-pools of a channels-last model pass on channels-last gradients, in place."""
    for module in model.modules():
        if type(module) is nn.MaxPool2d and not module.return_indices:
            module.__class__ = ChannelsLastMaxPool2d
    return model


class ChannelsLastMaxPool2d(nn.MaxPool2d):
    """Any max-pool, with a gradient in the layout of its input."""

    def forward(self, input: Tensor) -> Tensor:
        pooled: Tensor = super().forward(input)
        if pooled.dim() == 4 and pooled.requires_grad:
            pooled.register_hook(_with_channels_last)  # type: ignore[no-untyped-call]
        return pooled


def _with_channels_last(gradient: Tensor | None) -> Tensor | None:
    # There is no gradient if nothing behind the pool depends on it.
    return None if gradient is None else gradient.contiguous(memory_format=torch.channels_last)


class HalvingMaxPool2d(nn.MaxPool2d):
    """A 2×2 max-pool with stride 2."""

    def forward(self, input: Tensor) -> Tensor:
        if not input.is_contiguous() or min(input.shape[-2:]) < 2:
            return super().forward(input)  # type: ignore[no-any-return]
        pooled: Tensor = _Halve.apply(input)  # type: ignore[no-untyped-call]
        return pooled


class _Halve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor) -> Tensor:
        left, right = _columns(images)
        wide = torch.maximum(left, right)
        top, bottom = wide[..., 0::2, :], wide[..., 1::2, :]
        ctx.shape = images.shape
        ctx.save_for_backward(right > left, bottom > top)
        return torch.maximum(top, bottom)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        """Made of operations that have a gradient themselves."""
        took_right, took_bottom = ctx.saved_tensors
        bottom = gradients[0] * took_bottom
        wide = bottom.new_empty(took_right.shape)
        wide[..., 1::2, :] = bottom
        wide[..., 0::2, :] = gradients[0] - bottom
        right = wide * took_right
        even = all(size % 2 == 0 for size in ctx.shape[-2:])
        spread: Tensor = wide.new_empty(ctx.shape) if even else wide.new_zeros(ctx.shape)
        # Each view is new: an old one does not know the gradient of what was written beside it.
        _columns(spread)[1].copy_(right)
        _columns(spread)[0].copy_(wide - right)
        return spread


def _columns(images: Tensor) -> tuple[Tensor, Tensor]:
    """The left and the right column of each square."""
    height, width = (size // 2 * 2 for size in images.shape[-2:])
    return images[..., :height, 0:width:2], images[..., :height, 1:width:2]


def _halves(pool: nn.MaxPool2d) -> bool:
    return (
        pool.kernel_size in (2, (2, 2))
        and pool.stride in (2, (2, 2))
        and pool.padding in (0, (0, 0))
        and pool.dilation in (1, (1, 1))
        and not pool.ceil_mode
        and not pool.return_indices
    )
