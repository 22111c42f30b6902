"""Mini-batches of a round: which samples they hold, and how their images are augmented.

All random numbers of a round are drawn beforehand. So the plain loop and a step captured on a GPU
see the same images.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

_SMALLEST_BATCH = 2
"""Batch norm cannot train on a single sample, so a leftover one joins the batch before it."""
MARGIN = 4  # pixels of zero padding around an image before it is cropped back to its size


def mini_batch_count(samples: int, batch_size: int, epochs: float) -> int:
    """The number of mini-batches in `epochs` epochs; at least one."""
    return max(1, round(epochs * _per_epoch(samples, batch_size)))


def mini_batch_count_of_round(samples: int, batch_size: int, epochs: float, round_: int) -> int:
    """The number of mini-batches of one round, with rounding errors carried to the next round.

    If an epoch has few batches, some rounds then have one more than others, or none.
    """
    per_round = epochs * _per_epoch(samples, batch_size)
    return round(round_ * per_round) - round((round_ - 1) * per_round)


def batches(
    samples: int, batch_size: int, count: int, generator: torch.Generator
) -> Iterator[Tensor]:
    """`count` mini-batches of sample indexes, in a new random order each epoch."""
    while count > 0:
        order = torch.randperm(samples, generator=generator)
        cuts = [batch_size * i for i in range(1, _per_epoch(samples, batch_size))]
        for indexes in order.tensor_split(cuts)[:count]:
            yield indexes
            count -= 1


def _per_epoch(samples: int, batch_size: int) -> int:
    whole, rest = divmod(samples, batch_size)
    return max(1, whole + (1 if rest >= _SMALLEST_BATCH else 0))


def draw_moves(count: int, generator: torch.Generator) -> Tensor:
    """Draw for each image of a batch how far it moves down and right, and if it is mirrored."""
    shifts = torch.randint(0, 2 * MARGIN + 1, (2, count), generator=generator)
    mirrored = torch.randint(0, 2, (1, count), generator=generator)
    return torch.cat([shifts, mirrored])


def crop_and_flip(images: Any, moves: Tensor) -> Any:
    """Apply the moves to a batch of images [N, C, H, W]; any other input is returned unchanged."""
    if not isinstance(images, Tensor) or images.dim() != 4:
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
