"""Cross entropy of a batch and its gradient in one kernel; PyTorch takes ten small ones."""

from __future__ import annotations

import torch
from torch import Tensor

from adaptcl.training.gpu.kernels import loss_kernels as kernels

_MOST = 2**15
"""Scores that one program can hold."""


def fits(scores: Tensor) -> bool:
    """Whether the kernel can take the scores of this batch."""
    return (
        scores.is_cuda
        and scores.dim() == 2
        and scores.dtype in (torch.float32, torch.bfloat16)
        and scores.is_contiguous()
        and _power_of_two(len(scores)) * _power_of_two(scores.shape[1]) <= _MOST
    )


def loss_gradient(scores: Tensor, labels: Tensor, losses: Tensor, counter: Tensor) -> Tensor:
    """The gradient of the mean loss with respect to the scores.

    The loss itself is written to `losses` at the place that `counter` points at.
    """
    scores = scores.detach()
    gradient = torch.empty_like(scores)
    rows, classes = scores.shape
    kernels.cross_entropy[1,](
        scores,
        labels,
        gradient,
        losses,
        counter,
        rows,
        classes,
        ROWS=_power_of_two(rows),
        CLASSES=_power_of_two(classes),
        num_warps=4,
    )
    return gradient


def _power_of_two(count: int) -> int:
    return 1 << (max(1, count) - 1).bit_length()
