"""Which samples make up each mini-batch of a round."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

_SMALLEST_BATCH = 2
"""Batch norm cannot train on a single sample, so a rest of one joins the batch before it."""


def steps(samples: int, batch_size: int, epochs: float) -> int:
    """How many mini-batches make `epochs` epochs; at least one."""
    return max(1, round(epochs * _per_epoch(samples, batch_size)))


def steps_of_round(samples: int, batch_size: int, epochs: float, round_: int) -> int:
    """The same where rounds are to add up: what rounding leaves of one goes to the next.

    Where an epoch is a few batches, some rounds then have a step more than others, or none.
    """
    each = epochs * _per_epoch(samples, batch_size)
    return round(round_ * each) - round((round_ - 1) * each)


def batches(
    samples: int, batch_size: int, count: int, generator: torch.Generator
) -> Iterator[Tensor]:
    """`count` mini-batches of indexes: epochs in a new random order each, one after the other."""
    while count > 0:
        order = torch.randperm(samples, generator=generator)
        cuts = [batch_size * i for i in range(1, _per_epoch(samples, batch_size))]
        for indexes in order.tensor_split(cuts)[:count]:
            yield indexes
            count -= 1


def smallest_batch(samples: int, batch_size: int) -> int:
    """How many samples the smallest mini-batch of an epoch has."""
    count = _per_epoch(samples, batch_size)
    last = samples - (count - 1) * batch_size
    return last if count == 1 else min(last, batch_size)


def _per_epoch(samples: int, batch_size: int) -> int:
    whole, rest = divmod(samples, batch_size)
    return max(1, whole + (1 if rest >= _SMALLEST_BATCH else 0))


# Random crops and flips, as whole-batch tensor operations.
#
# What is drawn and what is done are kept apart: the random numbers of a round are drawn
# beforehand, so that a step captured on a GPU and the plain loop see the same images.

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
