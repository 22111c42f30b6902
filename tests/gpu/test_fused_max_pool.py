"""The kernels of the max-pool against PyTorch's own; `make test-gpu` runs these."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(64, 64, 32, 32), (5, 33, 2, 6)])
def test_values_and_gradients_are_those_of_pytorch_to_the_last_bit(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    from adaptcl.training.gpu.max_pool import halve, halves

    torch.manual_seed(0)
    images = torch.randint(0, 4, shape, device="cuda").to(dtype)  # with ties
    images = images.contiguous(memory_format=torch.channels_last)
    assert halves(images)
    theirs, ours = images.clone().requires_grad_(), images.clone().requires_grad_()
    expected, pooled = F.max_pool2d(theirs, 2), halve(ours)
    assert torch.equal(pooled, expected)
    outer = torch.randn_like(expected)
    (expected_gradient,) = torch.autograd.grad(expected, theirs, outer)
    (gradient,) = torch.autograd.grad(pooled, ours, outer)
    assert torch.equal(gradient, expected_gradient)
