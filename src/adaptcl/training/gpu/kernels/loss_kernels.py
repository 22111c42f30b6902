"""The kernel of the loss: cross entropy and its gradient in one go."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def cross_entropy(
    scores,
    labels,
    gradient,
    losses,
    counter,
    rows,
    classes,
    ROWS: tl.constexpr,
    CLASSES: tl.constexpr,
):
    """The mean loss of a batch into the place that the counter points at, and its gradient."""
    row = tl.arange(0, ROWS)
    column = tl.arange(0, CLASSES)
    real = row < rows
    place = row[:, None] * classes + column[None, :]
    is_class = column < classes
    inside = real[:, None] & is_class[None, :]
    score = tl.load(scores + place, mask=inside, other=0.0).to(tl.float32)
    score = tl.where(is_class[None, :], score, float("-inf"))
    score -= tl.max(score, 1)[:, None]
    power = tl.exp(score)
    total = tl.sum(power, 1)
    label = tl.load(labels + row, mask=real, other=0)
    hit = column[None, :] == label[:, None]
    loss = tl.log(total) - tl.sum(tl.where(hit, score, 0.0), 1)
    slope = (power / total[:, None] - tl.where(hit, 1.0, 0.0)) / rows
    tl.store(gradient + place, slope.to(gradient.dtype.element_ty), mask=inside)
    tl.store(losses + tl.load(counter), tl.sum(tl.where(real, loss, 0.0), 0) / rows)
