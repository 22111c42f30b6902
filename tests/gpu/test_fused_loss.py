"""The kernel of the loss against PyTorch's own; `make test-gpu` runs these."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "classes"), [(64, 10), (8, 10), (64, 200), (7, 3), (1, 1)])
def test_loss_and_gradient_are_those_of_pytorch(
    rows: int, classes: int, dtype: torch.dtype
) -> None:
    from adaptcl.training.gpu.loss import fits, loss_gradient

    torch.manual_seed(0)
    scores = (5 * torch.randn(rows, classes, device="cuda")).to(dtype)
    labels = torch.randint(0, classes, (rows,), device="cuda")
    losses, counter = torch.zeros(5, device="cuda"), torch.tensor([3], device="cuda")
    assert fits(scores)
    gradient = loss_gradient(scores, labels, losses, counter)

    exact = scores.double().requires_grad_()
    loss = F.cross_entropy(exact, labels)
    (expected,) = torch.autograd.grad(loss, exact)
    assert losses.tolist() == pytest.approx([0, 0, 0, float(loss), 0], rel=1e-5, abs=1e-6)
    loose = 1e-2 if dtype == torch.bfloat16 else 1e-5
    assert float((gradient.double() - expected).norm()) <= loose * float(expected.norm()) + 1e-12
