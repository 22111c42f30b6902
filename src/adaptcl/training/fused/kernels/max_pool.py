"""The kernels of the max-pool that halves an image."""

import triton
import triton.language as tl


@triton.jit
def _square(number, height, width, channels):
    """Where the upper left corner of a 2×2 square lies, of channels-last images."""
    column = (number // channels) % (width // 2)
    line = number // channels // (width // 2)  # images one below the other
    return (2 * line * width + 2 * column) * channels + number % channels


@triton.jit(do_not_specialize=["count"])
def halve(x, y, count, height, width, channels, BLOCK: tl.constexpr):
    """The largest of each 2×2 square."""
    number = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = number < count
    corner = x + _square(number, height, width, channels)
    upper = tl.maximum(
        tl.load(corner, mask=inside, other=0.0), tl.load(corner + channels, mask=inside, other=0.0)
    )
    corner += width * channels
    lower = tl.maximum(
        tl.load(corner, mask=inside, other=0.0), tl.load(corner + channels, mask=inside, other=0.0)
    )
    tl.store(y + number, tl.maximum(upper, lower), mask=inside)


@triton.jit(do_not_specialize=["count"])
def halve_gradient(dy, x, y, dx, count, height, width, channels, BLOCK: tl.constexpr):
    """The gradient goes to the largest of each square, to the first where there are several."""
    number = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = number < count
    place = _square(number, height, width, channels)
    gradient = tl.load(dy + number, mask=inside, other=0.0)
    largest = tl.load(y + number, mask=inside, other=0.0)
    open_ = inside
    for corner in tl.static_range(4):
        at = place + (corner // 2 * width + corner % 2) * channels
        taken = open_ & (tl.load(x + at, mask=inside, other=0.0) == largest)
        tl.store(dx + at, tl.where(taken, gradient, 0.0), mask=inside)
        open_ = open_ & ~taken
