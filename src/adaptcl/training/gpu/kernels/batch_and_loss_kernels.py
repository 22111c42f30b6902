"""Kernels at the two ends of a step: the batch before the model, and the loss after it."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def batch(
    inputs,
    labels,
    scale,
    shift,
    table,
    counter,
    images,
    image_labels,
    row,
    part,
    height,
    width,
    MOVED: tl.constexpr,
    MARGIN: tl.constexpr,
    CHANNELS: tl.constexpr,
    PIXELS: tl.constexpr,
):
    """Some pixels of one image of the batch that the counter points at.

    A row of the table holds `part` sample numbers and, if images are MOVED, how far each goes down
    and right and whether it is mirrored, `part` entries of each.
    """
    number = tl.program_id(0)
    entry = table + tl.load(counter) * row + number
    index = tl.load(entry)
    pixel = tl.program_id(1) * PIXELS + tl.arange(0, PIXELS)
    line = pixel // width
    column = pixel % width
    real = pixel < height * width
    inside = real
    if MOVED:
        mirrored = tl.load(entry + 3 * part) > 0
        column = tl.where(mirrored, width - 1 - column, column)
        line += tl.load(entry + part).to(tl.int32) - MARGIN
        column += tl.load(entry + 2 * part).to(tl.int32) - MARGIN
        inside = real & (line >= 0) & (line < height) & (column >= 0) & (column < width)
    first = inputs + index * (CHANNELS * height * width)
    into = images + (number * height * width + pixel) * CHANNELS
    for channel in tl.static_range(CHANNELS):
        place = first + (channel * height + line) * width + column
        value = tl.load(place, mask=inside, other=0).to(tl.float32)
        value = value * tl.load(scale + channel) + tl.load(shift + channel)
        tl.store(into + channel, tl.where(inside, value, 0.0), mask=real)
    if tl.program_id(1) == 0:
        tl.store(image_labels + number, tl.load(labels + index))


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
