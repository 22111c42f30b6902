"""The kernels of batch norm against PyTorch's own; `make test-gpu` runs these."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(64, 64, 32, 32), (64, 100, 4, 4), (7, 3, 5, 5), (64, 512)])
def test_batch_norm_and_its_gradients_are_those_of_pytorch(
    shape: tuple[int, ...], dtype: torch.dtype, relu: bool
) -> None:
    from adaptcl.training.gpu.batch_norm import batch_norm, fits

    torch.manual_seed(0)
    channels = shape[1]
    x = torch.randn(shape, device="cuda").mul_(2).add_(3).to(dtype)
    if x.dim() == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    assert fits(x)
    bias, shift, mean = torch.randn(3, channels, device="cuda")
    scale, variance = torch.rand(2, channels, device="cuda") + 0.5
    outer = torch.randn_like(x)

    # PyTorch in double precision, with the bias that the kernels leave out.
    exact = [t.double().requires_grad_() for t in (x, scale, shift)]
    biased = exact[0] + bias.double().view(1, -1, *[1] * (x.dim() - 2))
    stats = mean.double(), variance.double()
    y = F.batch_norm(biased, *stats, exact[1], exact[2], True, 0.1, 1e-5)
    y = F.relu(y) if relu else y
    expected = torch.autograd.grad(y, exact, outer.double())

    own = [t.clone().requires_grad_() for t in (x, scale, shift)]
    own_stats = mean.clone(), variance.clone()
    got = batch_norm(own[0], *own_stats, own[1], own[2], 0.1, 1e-5, relu=relu, bias=bias.to(dtype))
    gradients = torch.autograd.grad(got, own, outer)
    loose = 2e-2 if dtype == torch.bfloat16 else 1e-4
    for ours, theirs in zip((got, *own_stats, *gradients), (y, *stats, *expected), strict=True):
        # A rectified value next to zero may fall on either side: compare in the mean.
        difference = (ours.double() - theirs).norm() / theirs.norm()
        assert difference < loose


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(64, 64, 32, 32), (64, 512, 4, 4), (7, 100, 6, 2), (8, 3, 2, 2)])
def test_with_a_max_pool_behind_it_the_three_are_one(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    from adaptcl.training.gpu.batch_norm import batch_norm
    from adaptcl.training.gpu.batch_norm_pool import batch_norm_pool

    torch.manual_seed(0)
    channels = shape[1]
    x = torch.randn(shape, device="cuda").mul_(2).add_(3).to(dtype)
    x = x.contiguous(memory_format=torch.channels_last)
    bias, shift, mean = torch.randn(3, channels, device="cuda")
    scale, variance = torch.rand(2, channels, device="cuda") + 0.5
    results = []
    for together in (False, True):
        own = [t.clone().requires_grad_() for t in (x, scale, shift)]
        stats = mean.clone(), variance.clone()
        operation = batch_norm_pool if together else batch_norm
        y = operation(own[0], *stats, own[1], own[2], 0.1, 1e-5, relu=True, bias=bias.to(dtype))
        y = y if together else F.max_pool2d(y, 2)
        torch.manual_seed(1)
        gradients = torch.autograd.grad(y, own, torch.randn_like(y))
        results.append((y, *stats, *gradients))
    for one, three in zip(*results, strict=True):
        # Of two values that are equal once rounded, either may count as the largest.
        assert (one - three).float().norm() <= 1e-2 * three.float().norm()
