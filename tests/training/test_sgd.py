from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from adaptcl.training import Recipe
from adaptcl.training.optimizers import SGD


def net(dtype: torch.dtype, layout: torch.memory_format) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.Conv2d(5, 4, 1), nn.Flatten(), nn.Linear(16, 7))
    return model.to(dtype).to(memory_format=layout)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_it_is_pytorchs_sgd_for_any_type_and_layout(
    dtype: torch.dtype, layout: torch.memory_format, momentum: float
) -> None:
    recipe = Recipe(learning_rate=0.1, momentum=momentum, weight_decay=0.01)
    mine = net(dtype, layout)
    other = copy.deepcopy(mine)
    own = SGD(mine, recipe)
    theirs = torch.optim.SGD(
        other.parameters(), lr=0.1, momentum=momentum, weight_decay=0.01, foreach=True
    )
    for _ in range(3):
        images = torch.randn(2, 3, 4, 4, dtype=dtype)
        for model in (mine, other):
            model(images).square().sum().backward()
        own.step()
        theirs.step()
        theirs.zero_grad()
    for found, expected in zip(mine.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(found, expected)
        assert found.stride() == expected.stride()


def test_it_begins_without_gradients_and_leaves_none() -> None:
    model = net(torch.float32, torch.channels_last)
    model(torch.randn(2, 3, 4, 4)).sum().backward()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = SGD(model, Recipe())
    optimizer.step()
    assert all(map(torch.equal, before, model.parameters()))
    model(torch.randn(2, 3, 4, 4)).sum().backward()
    optimizer.step()
    assert not any(map(torch.equal, before, model.parameters()))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_what_has_no_gradient_in_a_step_keeps_its_place_and_its_velocity() -> None:
    used, rests = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    frozen = nn.Parameter(torch.ones(3), requires_grad=False)
    model = nn.Module()
    model.used, model.rests, model.frozen = used, rests, frozen
    optimizer = SGD(model, Recipe(learning_rate=1.0, momentum=0.5, weight_decay=0.0))

    def step(*parameters: nn.Parameter) -> list[float]:
        for parameter in parameters:
            parameter.grad = torch.ones(3)
        optimizer.step()
        tensors: list[Tensor] = [used, rests, frozen]
        return [float(tensor.detach()[0]) for tensor in tensors]

    assert step(used) == [0.0, 1.0, 1.0]
    assert step(used, rests) == [-1.5, 0.0, 1.0]
    assert step(rests) == [-1.5, -1.5, 1.0]


def test_parameters_of_several_types_train_together() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = SGD(model, Recipe(learning_rate=0.5, weight_decay=0.0))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    for now, then in zip(model.parameters(), before, strict=True):
        torch.testing.assert_close(now, then - 0.5)
