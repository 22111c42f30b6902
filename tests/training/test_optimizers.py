"""Ours are PyTorch's optimizers, and FedProx's pull is the gradient of its term."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adaptcl.data import Samples
from adaptcl.training import Pruning, Recipe, Task
from adaptcl.training.group_lasso import GroupLasso
from adaptcl.training.optimizers import SGD, AnyOptimizer, Proximal, optimizer
from adaptcl.training.trainer import PlainTrainer
from adaptcl.training.worker import Worker, WorkerMemory
from adaptcl.units import UnitMap, submodel

Tasks = Callable[..., Task]
ADAMW = Recipe(optimizer="adamw", learning_rate=0.003, weight_decay=0.02)


def test_a_recipe_names_its_optimizer() -> None:
    model = nn.Linear(3, 2)
    assert isinstance(optimizer(model, Recipe()), SGD)
    assert isinstance(optimizer(model, ADAMW), AnyOptimizer)


def test_adamw_is_pytorchs_on_loss_and_group_lasso(
    net: nn.Module, units: UnitMap, digits: Samples, task: Tasks
) -> None:
    plain = PlainTrainer(net, units, digits)
    model = plain.load(units.everything(), dict(task().state))
    batches = [torch.arange(10), torch.arange(10, 30), torch.arange(5, 25)]
    plain.run(batches, None, ADAMW, lasso_lambda=0.002)

    expected = submodel(net, units, units.everything()).train()
    penalty = GroupLasso(expected, units, units.everything())
    theirs = torch.optim.AdamW(expected.parameters(), lr=0.003, weight_decay=0.02, foreach=False)
    for indexes in batches:
        inputs, labels = digits.batch(indexes)
        theirs.zero_grad()
        F.cross_entropy(expected(inputs), labels).backward()  # type: ignore[no-untyped-call]
        penalty.add_gradient(0.002)
        theirs.step()
    for name, tensor in expected.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], tensor, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_adamw_moves_parameters_of_other_types(dtype: torch.dtype) -> None:
    model = nn.Linear(4, 3).to(dtype)
    before = copy.deepcopy(model)
    ours = optimizer(model, ADAMW)
    model(torch.ones(2, 4, dtype=dtype)).square().sum().backward()
    ours.step()
    assert not torch.equal(model.weight, before.weight)
    assert model.weight.grad is None


def test_a_model_with_nothing_to_train_is_left_as_it_is() -> None:
    model = nn.Linear(4, 3).requires_grad_(False)
    optimizer(model, ADAMW).step()


def four_layers(dtype: torch.dtype, layout: torch.memory_format) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.Conv2d(5, 4, 1), nn.Flatten(), nn.Linear(16, 7))
    return model.to(dtype).to(memory_format=layout)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_sgd_is_pytorchs_for_any_type_and_layout(dtype: torch.dtype, momentum: float) -> None:
    for layout in (torch.contiguous_format, torch.channels_last):
        check_sgd(dtype, layout, momentum)


def check_sgd(dtype: torch.dtype, layout: torch.memory_format, momentum: float) -> None:
    recipe = Recipe(learning_rate=0.1, momentum=momentum, weight_decay=0.01)
    mine = four_layers(dtype, layout)
    other = copy.deepcopy(mine)
    ours = SGD(mine, recipe)
    theirs = torch.optim.SGD(
        other.parameters(), lr=0.1, momentum=momentum, weight_decay=0.01, foreach=True
    )
    for _ in range(3):
        images = torch.randn(2, 3, 4, 4, dtype=dtype)
        for model in (mine, other):
            model(images).square().sum().backward()
        ours.step()
        theirs.step()
        theirs.zero_grad()
    for found, expected in zip(mine.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(found, expected)
        assert found.stride() == expected.stride()


def test_sgd_begins_without_gradients_and_leaves_none() -> None:
    model = four_layers(torch.float32, torch.channels_last)
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


def test_the_pull_is_the_gradient_of_the_squared_distance() -> None:
    model = nn.Linear(4, 3)
    begin = {name: torch.randn_like(tensor) for name, tensor in model.named_parameters()}
    distance = sum((p - begin[name]).square().sum() for name, p in model.named_parameters())
    (0.7 / 2 * distance).backward()  # type: ignore[union-attr]
    expected = [parameter.grad for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    Proximal(model, begin, 0.7).add_gradient()
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_what_has_no_gradient_is_not_pulled() -> None:
    model = nn.Linear(4, 3)
    Proximal(model, dict(model.named_parameters()), 1.0).add_gradient()
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("beta", [0.5, 1.0])
def test_the_stronger_the_pull_the_nearer_a_worker_stays_also_past_a_pruning(
    net: nn.Module, units: UnitMap, digits: Samples, task: Tasks, beta: float
) -> None:
    distances = []
    for proximal in (0.0, 1.0, 20.0):
        recipe = Recipe(
            learning_rate=0.01, strength=0.0, beta=beta, weight_decay=0.0, proximal=proximal
        )
        asked = replace(
            task(), recipe=recipe, pruning=Pruning(0.3, "index", torch.arange(units.count) / 1.0)
        )
        update, _ = Worker(0, digits, net, units, 1).carry_out(asked, WorkerMemory())
        unmoved = replace(asked, recipe=replace(recipe, learning_rate=1e-12))
        still, _ = Worker(0, digits, net, units, 1).carry_out(unmoved, WorkerMemory())
        distances.append(
            sum(
                float((update.state[name] - still.state[name]).square().sum())
                for name, _ in net.named_parameters()
            )
        )
    assert distances[0] > distances[1] > distances[2]
