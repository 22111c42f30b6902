"""Dropout by a task's seed; the GPU's kernel is replaced by a function of the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adaptcl.training.gpu.task_dropout import Drop, TaskDropout

X = torch.randn(40, 30, generator=torch.Generator().manual_seed(0))


class Fused(nn.Module):
    """Dropout by the operation that PyTorch takes for it on a GPU."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.native_dropout(x, 0.25, self.training)[0]


def model(*layers: nn.Module) -> nn.Module:
    first = nn.Linear(30, 30)
    nn.init.eye_(first.weight)
    nn.init.zeros_(first.bias)
    return nn.Sequential(first, *layers).train()


@pytest.mark.parametrize("layer", [nn.Dropout(0.25), Fused()], ids=["composed", "fused"])
def test_as_many_entries_as_were_asked_for_are_dropped_and_the_others_made_up_for(
    layer: nn.Module, drop: Drop
) -> None:
    dropping = model(layer)
    TaskDropout.of(dropping, drop).seed(5)
    x = X.clone().requires_grad_()
    y = dropping(x)
    left = y != 0
    assert float(left.float().mean()) == pytest.approx(0.75, abs=0.05)
    assert torch.allclose(y[left], X[left] / 0.75)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.allclose(gradient, left / 0.75)


def test_every_operation_and_every_pass_draws_others() -> None:
    numbers: list[tuple[list[int], int]] = []

    def note(
        x: Tensor, probability: float, scale: float, dice: Tensor, number: int
    ) -> tuple[Tensor, Tensor]:
        numbers.append((dice.tolist(), number))
        return x, torch.ones_like(x, dtype=torch.bool)

    dropping = model(nn.Dropout(), nn.Dropout())
    dice = TaskDropout.of(dropping, note)
    dice.seed(5)
    dropping(X)
    dropping(X)
    assert numbers == [([5, 0], 0), ([5, 0], 1), ([5, 1], 0), ([5, 1], 1)]
    numbers.clear()
    dice.seed(6)
    dropping(X)
    assert numbers == [([6, 0], 0), ([6, 0], 1)]


def test_a_model_keeps_its_dropout(drop: Drop) -> None:
    dropping = model(nn.Dropout())
    assert TaskDropout.of(dropping, drop) is TaskDropout.of(dropping, drop)


def test_seed_and_count_are_no_part_of_a_models_state_but_are_put_back_with_its_buffers(
    drop: Drop,
) -> None:
    dropping = model(nn.Dropout())
    names = dropping.state_dict().keys()
    TaskDropout.of(dropping, drop).seed(5)
    assert dropping.state_dict().keys() == names
    before = [buffer.clone() for buffer in dropping.buffers()]
    first = dropping(X)
    for buffer, value in zip(dropping.buffers(), before, strict=True):
        buffer.copy_(value)
    assert torch.equal(dropping(X), first)


def test_the_process_generator_is_left_alone(drop: Drop) -> None:
    dropping = model(nn.Dropout(), nn.AlphaDropout())
    TaskDropout.of(dropping, drop).seed(5)
    before = torch.get_rng_state()
    dropping(X)
    assert torch.equal(before, torch.get_rng_state())


def test_in_evaluation_nothing_is_dropped_and_no_pass_counted(drop: Drop) -> None:
    dropping = model(nn.Dropout(), Fused())
    TaskDropout.of(dropping, drop).seed(5)
    first = dropping(X)
    TaskDropout.of(dropping, drop).seed(5)
    assert torch.equal(dropping.eval()(X), X)
    assert torch.equal(dropping.train()(X), first)


def test_a_generator_that_is_given_is_used(drop: Drop) -> None:
    class Given(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            mine = torch.Generator().manual_seed(1)
            return x * torch.empty_like(x).bernoulli_(0.5, generator=mine)

    dropping = model(Given())
    expected = dropping(X)
    TaskDropout.of(dropping, drop).seed(5)
    assert torch.equal(dropping(X), expected)


def test_outside_of_forward_passes_dropout_is_unchanged(drop: Drop) -> None:
    TaskDropout.of(model(nn.Dropout()), drop).seed(5)
    torch.manual_seed(1)
    found = F.dropout(X)
    torch.manual_seed(1)
    assert torch.equal(F.dropout(X), found)
