from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from adaptcl.data import Samples
from adaptcl.training import Pruning, Recipe, Task
from adaptcl.training.optimizers import Proximal
from adaptcl.training.worker import Worker, WorkerMemory
from adaptcl.units import UnitMap

Tasks = Callable[..., Task]


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


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
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
        kept_of_it = replace(asked, recipe=replace(recipe, learning_rate=1e-12))
        still, _ = Worker(0, digits, net, units, 1).carry_out(kept_of_it, WorkerMemory())
        distances.append(
            sum(
                float((update.state[name] - still.state[name]).square().sum())
                for name, _ in net.named_parameters()
            )
        )
    assert distances[0] > distances[1] > distances[2]
