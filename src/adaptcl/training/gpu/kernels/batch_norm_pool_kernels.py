"""The kernels of batch norm with a ReLU and the halving max-pool behind it.

What lies between them is never written: the forward pass writes the pooled images alone, and the
backward pass computes again which of each 2×2 square was the largest, and whether it passed.
"""

from __future__ import annotations

import triton
import triton.language as tl

from adaptcl.training.gpu.kernels.batch_norm_kernels import added_up, line, settled


@triton.jit
def _corner(square, width, channels, columns):
    """Where the upper left pixels of some squares lie in channels-last images."""
    half = width // 2
    first = 2 * (square // half) * width + 2 * (square % half)  # images one below the other
    return first[:, None] * channels + columns[None, :]


@triton.jit
def _normal(x, place, inside, factor, addend):
    """Some entries of x, and what batch norm makes of them, rounded as it would be written."""
    value = tl.load(x + place, mask=inside, other=0.0)
    normal = value.to(tl.float32) * factor[None, :] + addend[None, :]
    return value.to(tl.float32), normal.to(value.dtype).to(tl.float32)


@triton.jit
def _largest(x, corner, inside, width, channels, factor, addend):
    """The four entries of each square, and which one of them is taken: the first largest."""
    below = corner + width * channels
    a, na = _normal(x, corner, inside, factor, addend)
    b, nb = _normal(x, corner + channels, inside, factor, addend)
    c, nc = _normal(x, below, inside, factor, addend)
    d, nd = _normal(x, below + channels, inside, factor, addend)
    best = tl.maximum(tl.maximum(na, nb), tl.maximum(nc, nd))
    taken = tl.where(na == best, 0, tl.where(nb == best, 1, tl.where(nc == best, 2, 3)))
    return a, b, c, d, best, taken


@triton.jit(do_not_specialize=["rows", "squares", "share", "parts"])
def apply_and_pool(
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
    squares,
    width,
    channels,
    share,
    parts,
    momentum,
    eps,
    BIAS: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Normalise, rectify and pool some squares."""
    columns = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    number = tl.program_id(1)
    real = columns < channels
    plain, square_sum = added_up(sums, parts, channels, columns, real, PARTS)
    factor, addend = settled(
        x, plain, square_sum, scale, shift, bias, running_mean, running_var, mean_of, root_of,
        rows, columns, real, number == 0, momentum, eps, BIAS,
    )  # fmt: skip
    end = tl.minimum((number + 1) * share, squares)
    for start in range(number * share, end, BLOCK):
        square = start + tl.arange(0, BLOCK)
        inside = (square < end)[:, None] & real[None, :]
        corner = _corner(square, width, channels, columns)
        _, _, _, _, best, _ = _largest(x, corner, inside, width, channels, factor, addend)
        place = square[:, None] * channels + columns[None, :]
        tl.store(y + place, tl.maximum(best, 0.0).to(y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["squares", "stretch"])
def pooled_gradient_sums(
    dy,
    x,
    sums,
    scale,
    shift,
    mean_of,
    root_of,
    squares,
    width,
    channels,
    stretch,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
):
    """The backward sums of batch norm over one stretch of squares."""
    columns = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    part = tl.program_id(1)
    real = columns < channels
    mean, _, factor, addend = line(scale, shift, mean_of, root_of, columns, real)
    plain = tl.zeros((BLOCK, WIDE), tl.float32)
    product = tl.zeros((BLOCK, WIDE), tl.float32)
    end = tl.minimum((part + 1) * stretch, squares)
    for start in range(part * stretch, end, BLOCK):
        square = start + tl.arange(0, BLOCK)
        inside = (square < end)[:, None] & real[None, :]
        corner = _corner(square, width, channels, columns)
        a, b, c, d, best, taken = _largest(x, corner, inside, width, channels, factor, addend)
        place = square[:, None] * channels + columns[None, :]
        gradient = tl.load(dy + place, mask=inside, other=0.0).to(tl.float32)
        gradient = tl.where(best > 0, gradient, 0.0)
        upper = tl.where(taken == 0, a, b)
        lower = tl.where(taken == 2, c, d)
        value = tl.where(taken < 2, upper, lower)
        plain += gradient
        product += gradient * (value - mean[None, :])
    tl.store(sums + 2 * part * channels + columns, tl.sum(plain, 0), mask=real)
    tl.store(sums + (2 * part + 1) * channels + columns, tl.sum(product, 0), mask=real)


@triton.jit
def _gradient(gradient, value, plain, mean, slope, factor, dx, place, inside):
    """The gradient of one corner of some squares."""
    gradient -= plain[None, :] + (value - mean[None, :]) * slope[None, :]
    gradient *= factor[None, :]
    tl.store(dx + place, gradient.to(dx.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows", "squares", "share", "parts"])
def pooled_gradient(
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
    squares,
    width,
    channels,
    share,
    parts,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
):
    """The gradient for some squares; the first program also gives scale's and shift's."""
    columns = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    number = tl.program_id(1)
    real = columns < channels
    mean, root, factor, addend = line(scale, shift, mean_of, root_of, columns, real)
    plain, product = added_up(sums, parts, channels, columns, real, PARTS)
    if number == 0:
        tl.store(shift_gradient + columns, plain, mask=real)
        tl.store(scale_gradient + columns, product * root, mask=real)
    slope = product * root * root / rows
    plain = plain / rows
    end = tl.minimum((number + 1) * share, squares)
    for start in range(number * share, end, BLOCK):
        square = start + tl.arange(0, BLOCK)
        inside = (square < end)[:, None] & real[None, :]
        corner = _corner(square, width, channels, columns)
        below = corner + width * channels
        a, b, c, d, best, taken = _largest(x, corner, inside, width, channels, factor, addend)
        place = square[:, None] * channels + columns[None, :]
        gradient = tl.load(dy + place, mask=inside, other=0.0).to(tl.float32)
        taken = tl.where(best > 0, taken, 4)
        ga, gb = tl.where(taken == 0, gradient, 0.0), tl.where(taken == 1, gradient, 0.0)
        gc, gd = tl.where(taken == 2, gradient, 0.0), tl.where(taken == 3, gradient, 0.0)
        _gradient(ga, a, plain, mean, slope, factor, dx, corner, inside)
        _gradient(gb, b, plain, mean, slope, factor, dx, corner + channels, inside)
        _gradient(gc, c, plain, mean, slope, factor, dx, below, inside)
        _gradient(gd, d, plain, mean, slope, factor, dx, below + channels, inside)
