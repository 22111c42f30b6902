"""What the machine could do at best, measured: multiplications and copies per second."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch.nn.functional import conv2d

from benchmarks.timing import interleaved

_SIDE = {"cpu": 2048, "cuda": 8192}
_BATCH = {"cpu": 64, "cuda": 1024}
_BACKWARD = 3
"""A training step multiplies about three times as much as a forward pass: once for the scores,
once for the gradient of the weights, once for that of the inputs."""


def multiplications(device: str, precision: str = "float32") -> float:
    """FLOP/s of a large matrix product or a large convolution, whichever is faster."""
    kind = torch.device(device).type
    side, batch = _SIDE[kind], _BATCH[kind]
    dtype = torch.bfloat16 if kind == "cuda" and precision == "bf16" else torch.float32
    layout = torch.channels_last if kind == "cuda" else torch.contiguous_format
    make = partial(torch.randn, device=device, dtype=dtype)
    a, b = make(side, side), make(side, side)
    images = make(batch, 256, 16, 16).contiguous(memory_format=layout)
    filters = make(256, 256, 3, 3).contiguous(memory_format=layout)
    with _tf32(precision == "tf32"):
        times = interleaved(
            {"product": lambda: a @ b, "convolution": lambda: conv2d(images, filters, padding=1)},
            5,
            device,
        )
    product = 2.0 * side**3 / times["product"].best
    convolution = 2.0 * batch * 16 * 16 * 256 * 256 * 9 / times["convolution"].best
    return max(product, convolution)


@contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def step_flops(forward: float, batch: int) -> float:
    """FLOP of a training step, given those of a forward pass of one sample."""
    return _BACKWARD * forward * batch
