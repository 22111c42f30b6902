"""Kernels that change activations between layers: dropout and the max-pool that halves an image."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["count", "number", "probability", "scale"])
def drop(x, y, mask, dice, count, channels, area, number, probability, scale, BLOCK: tl.constexpr):
    """Zeros in place of some entries, the others times `scale`.

    An entry's number is drawn for its place in [images, channels, area], while in memory the
    channels come last: so the layout makes no difference.
    """
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    spot = place // channels
    entry = (spot // area * channels + place % channels) * area + spot % area
    zero = entry * 0
    seed = tl.load(dice)
    passes = tl.load(dice + 1).to(tl.int32)
    drawn, _, _, _ = tl.philox(seed, entry, zero + number, zero + passes, zero)
    kept = tl.uint_to_uniform_float(drawn) >= probability
    value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    value = tl.where(kept, value * scale, 0.0)
    tl.store(y + place, value.to(y.dtype.element_ty), mask=inside)
    tl.store(mask + place, kept.to(tl.int8), mask=inside)


@triton.jit
def _corners(count, height, width, channels, SQUARES: tl.constexpr, WIDE: tl.constexpr):
    """Which squares and channels are this program's: where the squares' upper left corners lie in
    channels-last images, where their maxima do, and which are real."""
    pieces = tl.cdiv(channels, WIDE)
    square = tl.program_id(0) // pieces * SQUARES + tl.arange(0, SQUARES)
    channel = tl.program_id(0) % pieces * WIDE + tl.arange(0, WIDE)
    column = square % (width // 2)
    line = square // (width // 2)  # images one below the other
    corner = (2 * line * width + 2 * column) * channels
    inside = (square < count)[:, None] & (channel < channels)[None, :]
    return (
        corner[:, None] + channel[None, :],
        square[:, None] * channels + channel[None, :],
        inside,
    )


@triton.jit
def _largest(x, corner, inside, width, channels):
    """The largest of each square."""
    below = corner + width * channels
    upper = tl.maximum(
        tl.load(x + corner, mask=inside, other=0.0),
        tl.load(x + corner + channels, mask=inside, other=0.0),
    )
    lower = tl.maximum(
        tl.load(x + below, mask=inside, other=0.0),
        tl.load(x + below + channels, mask=inside, other=0.0),
    )
    return tl.maximum(upper, lower)


@triton.jit(do_not_specialize=["count"])
def halve(x, y, count, height, width, channels, SQUARES: tl.constexpr, WIDE: tl.constexpr):
    """The largest of each 2×2 square."""
    corner, place, inside = _corners(count, height, width, channels, SQUARES, WIDE)
    tl.store(y + place, _largest(x, corner, inside, width, channels), mask=inside)


@triton.jit(do_not_specialize=["count"])
def halve_gradient(
    dy, x, dx, count, height, width, channels, SQUARES: tl.constexpr, WIDE: tl.constexpr
):
    """The gradient goes to the largest of each square, to the first where there are several."""
    corner, place, inside = _corners(count, height, width, channels, SQUARES, WIDE)
    gradient = tl.load(dy + place, mask=inside, other=0.0)
    largest = _largest(x, corner, inside, width, channels)
    open_ = inside
    for number in tl.static_range(4):
        at = corner + (number // 2 * width + number % 2) * channels
        taken = open_ & (tl.load(x + at, mask=inside, other=0.0) == largest)
        tl.store(dx + at, tl.where(taken, gradient, 0.0), mask=inside)
        open_ = open_ & ~taken
