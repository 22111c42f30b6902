"""The kernels of the convolution against PyTorch's own; `make test-gpu` runs these."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


@pytest.mark.parametrize(
    ("images", "channels", "outs", "size", "filter_", "stride", "padding"),
    [
        (64, 64, 64, 32, 3, 1, 1),
        (64, 128, 256, 8, 3, 1, 1),
        (64, 512, 512, 2, 3, 1, 1),
        (8, 80, 48, 16, 3, 1, 1),
        (64, 208, 400, 4, 3, 1, 1),
        (64, 64, 256, 16, 1, 1, 0),
        (64, 64, 128, 16, 1, 2, 0),
        (64, 64, 96, 15, 3, 2, 1),
        (7, 16, 8, 9, 5, 1, 0),
        (64, 3, 64, 32, 3, 1, 1),
        (8, 3, 48, 32, 3, 1, 1),
        (5, 1, 20, 28, 5, 1, 2),
        (16, 3, 64, 33, 7, 2, 3),
    ],
)
def test_convolution_and_its_gradients_are_those_of_pytorch(
    images: int, channels: int, outs: int, size: int, filter_: int, stride: int, padding: int
) -> None:
    from adaptcl.training.gpu.convolution import convolve, fits
    from adaptcl.training.gpu.shortcuts import Convolution

    torch.manual_seed(0)
    colours = channels < 8
    last = torch.channels_last
    x = torch.randn(images, channels, size, size, device="cuda").contiguous(memory_format=last)
    filters = torch.randn(outs, channels, filter_, filter_, device="cuda") / filter_
    filters = filters.bfloat16().contiguous(memory_format=last)
    x = x if colours else x.bfloat16()

    own = [x.clone().requires_grad_(not colours), filters.clone().requires_grad_()]
    call = Convolution(own[0], own[1], None, stride, padding)
    assert fits(call)
    y = convolve(call)
    assert y.dtype == torch.bfloat16
    outer = torch.randn_like(y)

    exact = [x.bfloat16().double().requires_grad_(), filters.double().requires_grad_()]
    expected = F.conv2d(exact[0], exact[1], stride=stride, padding=padding)
    wanted = torch.autograd.grad(expected, exact, outer.double())
    got = torch.autograd.grad(y, own[colours:], outer)
    for ours, theirs in zip((y, *got), (expected, *wanted[colours:]), strict=True):
        assert ours.shape == theirs.shape
        assert (ours.double() - theirs).norm() / theirs.norm() < 1e-2


def test_a_filter_gradient_has_the_same_bits_every_time() -> None:
    from adaptcl.training.gpu.convolution import filter_gradient

    torch.manual_seed(0)
    x, dy = torch.randn(2, 64, 64, 32, 32, device="cuda", dtype=torch.bfloat16)
    x, dy = (t.contiguous(memory_format=torch.channels_last) for t in (x, dy))
    filters = torch.zeros(64, 64, 3, 3, device="cuda", dtype=torch.bfloat16)
    filters = filters.contiguous(memory_format=torch.channels_last)
    first, second = (filter_gradient(x, dy, filters, 1, (1, 1)) for _ in range(2))
    assert torch.equal(first, second)
