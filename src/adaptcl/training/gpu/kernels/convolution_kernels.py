"""The kernels of the convolution: matrix products whose one factor is gathered from images.

Images and filters are channels-last, so at every tap (a place in the filter) a pixel meets a row
of channels. Filters' gradients are taken over stretches of pixels and added up in a fixed order,
so that the same step gives the same bits.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _seen(
    x,
    pixel,
    pixels,
    entry,
    height,
    width,
    y_height,
    y_width,
    above,
    left,
    STRIDE: tl.constexpr,
    CHANNELS: tl.constexpr,
    TAPS: tl.constexpr,
    ROW: tl.constexpr,
):
    """What filters see at some pixels: a row for each pixel with an entry for each weight."""
    tap = entry // CHANNELS
    at_line = (pixel // y_width % y_height * STRIDE)[:, None] + (tap // ROW - above)[None, :]
    at_column = (pixel % y_width * STRIDE)[:, None] + (tap % ROW - left)[None, :]
    inside = (
        (pixel < pixels)[:, None]
        & (entry < TAPS * CHANNELS)[None, :]
        & (at_line >= 0)
        & (at_line < height)
        & (at_column >= 0)
        & (at_column < width)
    )
    image = (pixel // (y_width * y_height))[:, None]
    place = ((image * height + at_line) * width + at_column) * CHANNELS
    return tl.load(x + place + (entry % CHANNELS)[None, :], mask=inside, other=0.0)


@triton.jit
def convolve_colours(
    x,
    filters,
    y,
    pixels,
    height,
    width,
    y_height,
    y_width,
    y_channels,
    above,
    left,
    STRIDE: tl.constexpr,
    CHANNELS: tl.constexpr,
    TAPS: tl.constexpr,
    ROW: tl.constexpr,
    PIXELS: tl.constexpr,
    OUTS: tl.constexpr,
    ENTRIES: tl.constexpr,
):
    """The convolution of images with a few colours, all weights of a filter at once."""
    blocks = tl.cdiv(y_channels, OUTS)
    pixel = tl.program_id(0) // blocks * PIXELS + tl.arange(0, PIXELS)
    out = tl.program_id(0) % blocks * OUTS + tl.arange(0, OUTS)
    entry = tl.arange(0, ENTRIES)
    seen = _seen(
        x, pixel, pixels, entry, height, width, y_height, y_width, above, left,
        STRIDE, CHANNELS, TAPS, ROW,
    ).to(y.dtype.element_ty)  # fmt: skip
    weights = tl.load(
        filters + out[None, :] * (TAPS * CHANNELS) + entry[:, None],
        mask=(entry < TAPS * CHANNELS)[:, None] & (out < y_channels)[None, :],
        other=0.0,
    )
    tl.store(
        y + pixel[:, None] * y_channels + out[None, :],
        tl.dot(seen, weights).to(y.dtype.element_ty),
        mask=(pixel < pixels)[:, None] & (out < y_channels)[None, :],
    )


@triton.jit
def colours_gradient(
    x,
    dy,
    parts,
    pixels,
    each,
    y_channels,
    above,
    left,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    Y_HEIGHT: tl.constexpr,
    Y_WIDTH: tl.constexpr,
    STRIDE: tl.constexpr,
    CHANNELS: tl.constexpr,
    TAPS: tl.constexpr,
    ROW: tl.constexpr,
    OUTS: tl.constexpr,
    ENTRIES: tl.constexpr,
    PIXELS: tl.constexpr,
):
    """The gradient of such filters over the pixels of one part, `each` of them."""
    out = tl.program_id(0) * OUTS + tl.arange(0, OUTS)
    is_out = out < y_channels
    entry = tl.arange(0, ENTRIES)
    begin = tl.program_id(1) * each
    within = tl.arange(0, PIXELS)
    sums = tl.zeros((OUTS, ENTRIES), tl.float32)
    for start in range(begin, min(begin + each, pixels), PIXELS):
        pixel = start + within
        seen = _seen(
            x, pixel, pixels, entry, HEIGHT, WIDTH, Y_HEIGHT, Y_WIDTH, above, left,
            STRIDE, CHANNELS, TAPS, ROW,
        ).to(dy.dtype.element_ty)  # fmt: skip
        slopes = tl.load(
            dy + pixel[:, None] * y_channels + out[None, :],
            mask=(pixel < pixels)[:, None] & is_out[None, :],
            other=0.0,
        )
        sums = tl.dot(tl.trans(slopes), seen, sums)
    weights = TAPS * CHANNELS
    part = parts + tl.program_id(1).to(tl.int64) * (y_channels * weights)
    tl.store(
        part + out[:, None] * weights + entry[None, :],
        sums.to(parts.dtype.element_ty),
        mask=is_out[:, None] & (entry < weights)[None, :],
    )


@triton.jit
def filter_gradient(
    x,
    dy,
    parts,
    pixels,
    each,
    channels,
    y_channels,
    above,
    left,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    Y_HEIGHT: tl.constexpr,
    Y_WIDTH: tl.constexpr,
    STRIDE: tl.constexpr,
    TAPS: tl.constexpr,
    ROW: tl.constexpr,
    OUTS: tl.constexpr,
    INS: tl.constexpr,
    PIXELS: tl.constexpr,
):
    """The gradient of filters for many channels over the pixels of one part, `each` of them.

    A program makes OUTS × INS entries of one tap. Sizes of images are compiled in: every step of
    the loop divides by them.
    """
    pieces = tl.cdiv(channels, INS)
    tap = tl.program_id(0) % (TAPS * pieces) // pieces
    channel = tl.program_id(0) % pieces * INS + tl.arange(0, INS)
    out = tl.program_id(0) // (TAPS * pieces) * OUTS + tl.arange(0, OUTS)
    is_channel = channel < channels
    is_out = out < y_channels
    down = tap // ROW - above
    right = tap % ROW - left
    begin = tl.program_id(1) * each
    within = tl.arange(0, PIXELS)
    sums = tl.zeros((OUTS, INS), tl.float32)
    for start in range(begin, min(begin + each, pixels), PIXELS):
        pixel = start + within
        real = pixel < pixels
        at_line = pixel // Y_WIDTH % Y_HEIGHT * STRIDE + down
        at_column = pixel % Y_WIDTH * STRIDE + right
        inside = real & (at_line >= 0) & (at_line < HEIGHT) & (at_column >= 0) & (at_column < WIDTH)
        place = ((pixel // (Y_WIDTH * Y_HEIGHT) * HEIGHT + at_line) * WIDTH + at_column) * channels
        values = tl.load(
            x + place[:, None] + channel[None, :],
            mask=inside[:, None] & is_channel[None, :],
            other=0.0,
        )
        slopes = tl.load(
            dy + pixel[:, None] * y_channels + out[None, :],
            mask=real[:, None] & is_out[None, :],
            other=0.0,
        )
        sums = tl.dot(tl.trans(slopes), values, sums)
    part = parts + tl.program_id(1).to(tl.int64) * (y_channels * TAPS * channels)
    tl.store(
        part + (out[:, None] * TAPS + tap) * channels + channel[None, :],
        sums.to(parts.dtype.element_ty),
        mask=is_out[:, None] & is_channel[None, :],
    )


@triton.jit
def add_parts(parts, total, count, number, BLOCK: tl.constexpr):
    """The sum of `number` parts of `count` entries, in their order."""
    entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = entry < count
    sums = tl.zeros((BLOCK,), tl.float32)
    for part in range(number):
        sums += tl.load(parts + part * count + entry, mask=inside, other=0.0)
    tl.store(total + entry, sums.to(total.dtype.element_ty), mask=inside)
