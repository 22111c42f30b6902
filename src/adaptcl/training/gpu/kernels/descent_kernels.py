"""The kernel of a step of SGD: one program for all that one unit owns."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _squares(own, count, inner, outer, lanes, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    """Squares of a slice's entries, added up lane by lane."""
    squares = tl.zeros((BLOCK,), tl.float32)
    if EVEN:
        own = tl.multiple_of(own, 16)
        count = tl.multiple_of(count, 8)
    for start in range(0, count, BLOCK):
        number = start + lanes
        place = number if EVEN else (number // inner) * outer + number % inner
        value = tl.load(own + place, mask=number < count, other=0.0)
        squares += value * value
    return squares


@triton.jit
def _descend(
    weights,
    halves,
    velocities,
    address,
    kind,
    count,
    inner,
    outer,
    lanes,
    pull,
    rate,
    momentum,
    EVEN: tl.constexpr,
    HALVES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A step on one slice, which begins where the pointers point."""
    full = address.to(tl.pointer_type(tl.float32))
    half = address.to(tl.pointer_type(tl.bfloat16))
    if EVEN:
        count = tl.multiple_of(count, 8)
        weights = tl.multiple_of(weights, 16)
        halves = tl.multiple_of(halves, 16)
        velocities = tl.multiple_of(velocities, 16)
        full = tl.multiple_of(full, 16)
        half = tl.multiple_of(half, 16)
    for start in range(0, count, BLOCK):
        number = start + lanes
        inside = number < count
        place = number if EVEN else (number // inner) * outer + number % inner
        gradient = tl.zeros((BLOCK,), tl.float32)
        if kind == 2:
            gradient = tl.load(full + place, mask=inside, other=0.0)
        if kind == 3:
            gradient = tl.load(half + place, mask=inside, other=0.0).to(tl.float32)
        weight = tl.load(weights + place, mask=inside, other=0.0)
        velocity = tl.load(velocities + place, mask=inside, other=0.0)
        velocity = momentum * velocity + gradient + pull * weight
        weight -= rate * velocity
        tl.store(velocities + place, velocity, mask=inside)
        tl.store(weights + place, weight, mask=inside)
        if HALVES:
            tl.store(halves + place, weight.to(tl.bfloat16), mask=inside)


@triton.jit(do_not_specialize=["momentum", "decay"])
def descend(
    weights,
    halves,
    velocities,
    firsts,
    roots,
    bases,
    counts,
    inners,
    outers,
    gradients,
    kinds,
    lasso_lambda,
    rate,
    momentum,
    decay,
    SMALLEST: tl.constexpr,
    HALVES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One step of SGD on everything that one group owns, with the group lasso's gradient.

    `kinds` says what a slice's gradient is: 0 none (the slice stays as it is), 1 zero,
    2 float32, 3 bfloat16. Slices that lie in one stretch of multiples of eight entries, as those
    of wide layers do, are read and written several entries at a time: code of its own, so what is
    done with a slice is compiled for both answers to `even`.
    """
    group = tl.program_id(0)
    begin = tl.load(firsts + group)
    end = tl.load(firsts + group + 1)
    root = tl.load(roots + group)
    lanes = tl.arange(0, BLOCK)
    step = tl.load(rate)
    pull = decay
    if root > 0:
        squares = tl.zeros((BLOCK,), tl.float32)
        for piece in range(begin, end):
            base = tl.load(bases + piece)
            count = tl.load(counts + piece)
            inner = tl.load(inners + piece)
            outer = tl.load(outers + piece)
            even = (inner >= count) & (base % 8 == 0) & (count % 8 == 0)
            for EVEN in tl.static_range(2):
                if even == EVEN:
                    squares += _squares(weights + base, count, inner, outer, lanes, EVEN, BLOCK)
        norm = tl.maximum(tl.sqrt(tl.sum(squares, 0)), SMALLEST)
        pull += tl.load(lasso_lambda) * root / norm
    for piece in range(begin, end):
        kind = tl.load(kinds + piece)
        if kind > 0:
            base = tl.load(bases + piece)
            count = tl.load(counts + piece)
            inner = tl.load(inners + piece)
            outer = tl.load(outers + piece)
            address = tl.load(gradients + piece)
            even = (inner >= count) & (base % 8 == 0) & (count % 8 == 0) & (address % 16 == 0)
            for EVEN in tl.static_range(2):
                if even == EVEN:
                    _descend(
                        weights + base,
                        halves + base,
                        velocities + base,
                        address,
                        kind,
                        count,
                        inner,
                        outer,
                        lanes,
                        pull,
                        step,
                        momentum,
                        EVEN,
                        HALVES,
                        BLOCK,
                    )
