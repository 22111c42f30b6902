"""Random crops and flips, as whole-batch tensor operations.

What is drawn and what is done are kept apart: the random numbers of a round are drawn
beforehand, so that a step captured on a GPU and the plain loop see the same images.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

MARGIN = 4
"""Pixels of zero padding around an image before it is cropped back to its size."""


def draw_moves(count: int, generator: torch.Generator) -> Tensor:
    """For each image of a batch how far it moves down and right, and whether it is mirrored."""
    shifts = torch.randint(0, 2 * MARGIN + 1, (2, count), generator=generator)
    mirrored = torch.randint(0, 2, (1, count), generator=generator)
    return torch.cat([shifts, mirrored])


def crop_and_flip(images: Tensor, moves: Tensor) -> Tensor:
    """Each image of [N, C, H, W] moved by up to 4 pixels either way, and mirrored half the time.

    Anything that is not a batch of images comes back as it is.
    """
    if images.dim() != 4:
        return images
    count, _, height, width = images.shape
    device = images.device
    padded = F.pad(images, (MARGIN, MARGIN, MARGIN, MARGIN)).permute(0, 2, 3, 1)
    down, right, mirrored = moves.to(device).unsqueeze(2)
    rows = down + torch.arange(height, device=device)
    across = torch.arange(width, device=device)
    columns = right + torch.where(mirrored.bool(), width - 1 - across, across)
    batch = torch.arange(count, device=device)[:, None, None]
    cropped = padded[batch, rows[:, :, None], columns[:, None, :]]
    return cropped.permute(0, 3, 1, 2).contiguous()
