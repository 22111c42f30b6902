"""The kernel of dropout."""

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
