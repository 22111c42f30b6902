"""The kernels of batch norm.

Batch norm sees its input as a matrix of `rows` samples or pixels by `channels`. Both its
directions need sums over all rows before they can do anything. Where there are many rows, sums
over stretches of them are taken first, by `…_sums`, and added up in a fixed order, so that the
same step gives the same bits; where there are few, `ALONE`, one program takes them all.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _forward_sums(
    x, rows_from, rows_to, channels, columns, real, BLOCK: tl.constexpr, WIDE: tl.constexpr
):
    """Of every channel Σ(x − x₀) and Σ(x − x₀)² over some rows.

    x₀ is the channel's first entry: without it, squares of a mean far from zero would swallow the
    variance.
    """
    first = tl.load(x + columns, mask=real, other=0.0).to(tl.float32)
    plain = tl.zeros((BLOCK, WIDE), tl.float32)
    square = tl.zeros((BLOCK, WIDE), tl.float32)
    for row in range(rows_from, rows_to, BLOCK):
        lines = row + tl.arange(0, BLOCK)
        inside = (lines < rows_to)[:, None] & real[None, :]
        value = tl.load(x + lines[:, None] * channels + columns[None, :], mask=inside, other=0.0)
        value = tl.where(inside, value.to(tl.float32) - first[None, :], 0.0)
        plain += value
        square += value * value
    return tl.sum(plain, 0), tl.sum(square, 0)


@triton.jit
def _passed(gradient, value, factor, addend, RELU: tl.constexpr):
    """The gradient behind the ReLU: whether a value passed it is computed again, not read."""
    if RELU:
        gradient = tl.where(value * factor[None, :] + addend[None, :] > 0, gradient, 0.0)
    return gradient


@triton.jit
def _backward_sums(
    dy,
    x,
    mean,
    factor,
    addend,
    rows_from,
    rows_to,
    channels,
    columns,
    real,
    RELU: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Of every channel Σdy and Σdy·(x − mean) over some rows."""
    plain = tl.zeros((BLOCK, WIDE), tl.float32)
    product = tl.zeros((BLOCK, WIDE), tl.float32)
    for row in range(rows_from, rows_to, BLOCK):
        lines = row + tl.arange(0, BLOCK)
        inside = (lines < rows_to)[:, None] & real[None, :]
        places = lines[:, None] * channels + columns[None, :]
        gradient = tl.load(dy + places, mask=inside, other=0.0).to(tl.float32)
        value = tl.load(x + places, mask=inside, other=0.0).to(tl.float32)
        gradient = _passed(gradient, value, factor, addend, RELU)
        plain += gradient
        product += gradient * (value - mean[None, :])
    return tl.sum(plain, 0), tl.sum(product, 0)


@triton.jit
def line(scale, shift, mean_of, root_of, columns, real):
    """Mean and 1/σ of the channels, and what batch norm is to them: factor · x + addend."""
    mean = tl.load(mean_of + columns, mask=real, other=0.0)
    root = tl.load(root_of + columns, mask=real, other=0.0)
    factor = root * tl.load(scale + columns, mask=real, other=0.0)
    addend = tl.load(shift + columns, mask=real, other=0.0) - mean * factor
    return mean, root, factor, addend


@triton.jit
def added_up(sums, parts, channels, columns, real, PARTS: tl.constexpr):
    """Both sums of the channels over all stretches."""
    part = tl.arange(0, PARTS)
    places = sums + 2 * part[:, None] * channels + columns[None, :]
    inside = (part < parts)[:, None] & real[None, :]
    return (
        tl.sum(tl.load(places, mask=inside, other=0.0), 0),
        tl.sum(tl.load(places + channels, mask=inside, other=0.0), 0),
    )


@triton.jit
def settled(
    x,
    plain,
    square,
    scale,
    shift,
    bias,
    running_mean,
    running_var,
    mean_of,
    root_of,
    rows,
    columns,
    real,
    is_first,
    momentum,
    eps,
    BIAS: tl.constexpr,
):
    """What batch norm is to the channels, factor · x + addend, from their forward sums.

    The first program also keeps the statistics. `bias` is one that the convolution before did not
    add: it changes the running mean only.
    """
    off = plain / rows
    variance = tl.maximum(square / rows - off * off, 0.0)
    mean = off + tl.load(x + columns, mask=real, other=0.0).to(tl.float32)
    root = tl.rsqrt(variance + eps)
    if is_first:
        tl.store(mean_of + columns, mean, mask=real)
        tl.store(root_of + columns, root, mask=real)
        seen = mean
        if BIAS:
            seen += tl.load(bias + columns, mask=real, other=0.0).to(tl.float32)
        old = tl.load(running_mean + columns, mask=real, other=0.0)
        tl.store(running_mean + columns, old + momentum * (seen - old), mask=real)
        unbiased = variance * rows / tl.maximum(rows - 1, 1)
        old = tl.load(running_var + columns, mask=real, other=0.0)
        tl.store(running_var + columns, old + momentum * (unbiased - old), mask=real)
    factor = root * tl.load(scale + columns, mask=real, other=0.0)
    addend = tl.load(shift + columns, mask=real, other=0.0) - mean * factor
    return factor, addend


@triton.jit(do_not_specialize=["rows", "stretch"])
def batch_norm_sums(x, sums, rows, channels, stretch, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    """The forward sums over one stretch of rows."""
    columns = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    part = tl.program_id(1)
    real = columns < channels
    end = tl.minimum((part + 1) * stretch, rows)
    plain, square = _forward_sums(x, part * stretch, end, channels, columns, real, BLOCK, WIDE)
    tl.store(sums + 2 * part * channels + columns, plain, mask=real)
    tl.store(sums + (2 * part + 1) * channels + columns, square, mask=real)


@triton.jit(do_not_specialize=["rows", "stretch"])
def batch_norm_gradient_sums(
    dy,
    x,
    sums,
    scale,
    shift,
    mean_of,
    root_of,
    rows,
    channels,
    stretch,
    RELU: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
):
    """The backward sums over one stretch of rows."""
    columns = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    part = tl.program_id(1)
    real = columns < channels
    mean, _, factor, addend = line(scale, shift, mean_of, root_of, columns, real)
    end = tl.minimum((part + 1) * stretch, rows)
    plain, product = _backward_sums(
        dy, x, mean, factor, addend, part * stretch, end, channels, columns, real,
        RELU, BLOCK, WIDE,
    )  # fmt: skip
    tl.store(sums + 2 * part * channels + columns, plain, mask=real)
    tl.store(sums + (2 * part + 1) * channels + columns, product, mask=real)


@triton.jit(do_not_specialize=["rows", "stretch", "parts"])
def batch_norm_apply(
    x,
    y,
    sums,
    scale,
    shift,
    bias,
    running_mean,
    running_var,
    mean_of,
    root_of,
    rows,
    channels,
    stretch,
    parts,
    momentum,
    eps,
    RELU: tl.constexpr,
    BIAS: tl.constexpr,
    ALONE: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Normalise one stretch of rows."""
    columns = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    stretch_number = tl.program_id(1)
    real = columns < channels
    if ALONE:
        plain, square = _forward_sums(x, 0, rows, channels, columns, real, BLOCK, WIDE)
    else:
        plain, square = added_up(sums, parts, channels, columns, real, PARTS)
    factor, addend = settled(
        x, plain, square, scale, shift, bias, running_mean, running_var, mean_of, root_of,
        rows, columns, real, stretch_number == 0, momentum, eps, BIAS,
    )  # fmt: skip
    end = tl.minimum((stretch_number + 1) * stretch, rows)
    for row in range(stretch_number * stretch, end, BLOCK):
        lines = row + tl.arange(0, BLOCK)
        inside = (lines < end)[:, None] & real[None, :]
        places = lines[:, None] * channels + columns[None, :]
        value = tl.load(x + places, mask=inside, other=0.0).to(tl.float32)
        value = value * factor[None, :] + addend[None, :]
        if RELU:
            value = tl.maximum(value, 0.0)
        tl.store(y + places, value.to(y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows", "stretch", "parts"])
def batch_norm_gradient(
    dy,
    x,
    dx,
    sums,
    scale,
    shift,
    mean_of,
    root_of,
    scale_gradient,
    shift_gradient,
    rows,
    channels,
    stretch,
    parts,
    RELU: tl.constexpr,
    ALONE: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
):
    """The gradient for one stretch of rows; the first stretch also gives scale's and shift's."""
    columns = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    stretch_number = tl.program_id(1)
    real = columns < channels
    mean, root, factor, addend = line(scale, shift, mean_of, root_of, columns, real)
    if ALONE:
        plain, product = _backward_sums(
            dy, x, mean, factor, addend, 0, rows, channels, columns, real, RELU, BLOCK, WIDE
        )
    else:
        plain, product = added_up(sums, parts, channels, columns, real, PARTS)
    if stretch_number == 0:
        tl.store(shift_gradient + columns, plain, mask=real)
        tl.store(scale_gradient + columns, product * root, mask=real)
    slope = product * root * root / rows
    plain = plain / rows
    end = tl.minimum((stretch_number + 1) * stretch, rows)
    for row in range(stretch_number * stretch, end, BLOCK):
        lines = row + tl.arange(0, BLOCK)
        inside = (lines < end)[:, None] & real[None, :]
        places = lines[:, None] * channels + columns[None, :]
        gradient = tl.load(dy + places, mask=inside, other=0.0).to(tl.float32)
        value = tl.load(x + places, mask=inside, other=0.0).to(tl.float32)
        gradient = _passed(gradient, value, factor, addend, RELU)
        gradient -= plain[None, :] + (value - mean[None, :]) * slope[None, :]
        gradient *= factor[None, :]
        tl.store(dx + places, gradient.to(dx.dtype.element_ty), mask=inside)
