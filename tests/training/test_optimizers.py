from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from adaptcl.data import Samples
from adaptcl.training import Recipe, Task
from adaptcl.training.group_lasso import GroupLasso
from adaptcl.training.optimizers import SGD, AdamW, optimizer
from adaptcl.training.trainer import PlainTrainer
from adaptcl.units import UnitMap, submodel

Tasks = Callable[..., Task]
ADAMW = Recipe(optimizer="adamw", learning_rate=0.003, weight_decay=0.02)


def test_a_recipe_names_its_optimizer() -> None:
    model = nn.Linear(3, 2)
    assert isinstance(optimizer(model, Recipe()), SGD)
    assert isinstance(optimizer(model, ADAMW), AdamW)


def test_adamw_is_pytorchs_on_loss_and_group_lasso(
    net: nn.Module, units: UnitMap, digits: Samples, task: Tasks
) -> None:
    plain = PlainTrainer(net, units, digits)
    model = plain.load(units.everything(), dict(task().state))
    batches = [torch.arange(10), torch.arange(10, 30), torch.arange(5, 25)]
    plain.run(model, units.everything(), batches, None, ADAMW, lasso=0.002)

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
    own = AdamW(model, ADAMW)
    model(torch.ones(2, 4, dtype=dtype)).square().sum().backward()
    own.step()
    assert not torch.equal(model.weight, before.weight)
    assert model.weight.grad is None


def test_a_model_with_nothing_to_train_is_left_as_it_is() -> None:
    model = nn.Linear(4, 3).requires_grad_(False)
    AdamW(model, ADAMW).step()
