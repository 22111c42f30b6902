"""Make a batch of images in one kernel: gathered, augmented, normalised and channels-last."""

from __future__ import annotations

import torch
from torch import Tensor

from adaptcl.data import Samples
from adaptcl.training.batches import MARGIN
from adaptcl.training.gpu.kernels import batch_kernels as kernels

_COLOURS = 8
"""Most channels of an image: a program goes through them one by one."""
_PIXELS = 512
"""Pixels of an image that one program takes."""


def fits(samples: Samples, size: int) -> bool:
    """Whether the kernel can make batches of this size: it takes images in bytes, on a GPU."""
    inputs = samples.inputs
    return (
        inputs.is_cuda
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
    assert samples.scale is not None
    assert samples.shift is not None
    _, channels, height, width = samples.inputs.shape
    device = samples.labels.device
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
