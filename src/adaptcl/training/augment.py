"""Random crops and flips, as whole-batch tensor operations."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

_PAD = 4
"""Pixels of zero padding around an image before it is cropped back to its size."""


def crop_and_flip(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each image of [N, C, H, W] shifted by up to 4 pixels either way, and mirrored half the time.

    Anything that is not a batch of images comes back as it is.
    """
    if images.dim() != 4:
        return images
    count, _, height, width = images.shape
    padded = F.pad(images, (_PAD, _PAD, _PAD, _PAD))
    shifts = torch.randint(0, 2 * _PAD + 1, (2, count, 1), generator=generator)
    rows = (shifts[0] + torch.arange(height)).to(images.device)
    columns = (shifts[1] + torch.arange(width)).expand(-1, width).clone()
    mirrored = torch.rand(count, generator=generator) < 0.5
    columns[mirrored] = columns[mirrored].flip(1)
    columns = columns.to(images.device)
    batch = torch.arange(count, device=images.device)[:, None, None]
    cropped = padded.permute(0, 2, 3, 1)[batch, rows[:, :, None], columns[:, None, :]]
    return cropped.permute(0, 3, 1, 2).contiguous()
