"""The two ends of a step, in one kernel each: the batch of images, and the loss of their scores.

A batch is gathered, augmented, normalised and laid out channels-last in one go. Cross entropy and
its gradient take PyTorch ten small kernels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from adaptcl.data import Samples
from adaptcl.training.batches import MARGIN
from adaptcl.training.gpu.kernels import batch_and_loss_kernels as kernels

_COLOURS = 8  # most channels of an image: a program goes through them one by one
_PIXELS = 512  # pixels of an image that one program takes
_MOST = 2**15  # scores that one program can hold


def batch_fits(samples: Samples, size: int) -> bool:
    """Whether the kernel can make batches of this size: it takes images in bytes, on a GPU."""
    inputs = samples.inputs
    return (
        isinstance(inputs, Tensor)
        and samples.has_labels
        and inputs.is_cuda
        and inputs.dtype == torch.uint8
        and inputs.dim() == 4
        and inputs.is_contiguous()
        and inputs.shape[1] <= _COLOURS
        and size * inputs[0].numel() < 2**31
    )


def batch(
    samples: Samples, table: Tensor, counter: Tensor, size: int, *, moved: bool
) -> tuple[Tensor, Tensor]:
    """The images and labels of the batch that the counter points at in the table.

    `table` is [batches, 1 or 4, widest batch]: sample numbers, and what `draw_moves` drew for them
    if images are `moved`.
    """
    assert isinstance(samples.inputs, Tensor)
    assert samples.scale is not None
    assert samples.shift is not None
    _, channels, height, width = samples.inputs.shape
    device = samples.device
    images = torch.empty(
        (size, channels, height, width), device=device, memory_format=torch.channels_last
    )
    labels = torch.empty(size, dtype=torch.long, device=device)
    kernels.batch[size, -(-height * width // _PIXELS)](
        samples.inputs,
        samples.labels,
        samples.scale,
        samples.shift,
        table,
        counter,
        images,
        labels,
        table.stride(0),
        table.stride(1),
        height,
        width,
        MOVED=moved,
        MARGIN=MARGIN,
        CHANNELS=channels,
        PIXELS=_PIXELS,
        num_warps=4,
    )
    return images, labels


def loss_fits(scores: Tensor) -> bool:
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
