from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from adaptcl.data import Samples
from adaptcl.training import Recipe, Task
from adaptcl.training.batches import crop_and_flip
from adaptcl.training.devices import trainers
from adaptcl.training.group_lasso import GroupLasso
from adaptcl.training.trainer import PlainTrainer
from adaptcl.units import UnitMap, submodel

Tasks = Callable[..., Task]


def test_steps_are_momentum_sgd_on_loss_lasso_and_weight_decay(
    net: nn.Module, units: UnitMap, digits: Samples, task: Tasks
) -> None:
    recipe = Recipe(learning_rate=0.1, momentum=0.5, weight_decay=0.01)
    plain = PlainTrainer(net, units, digits)
    model = plain.load(units.everything(), dict(task().state))
    batches = [torch.arange(10), torch.arange(10, 30)]
    losses = plain.run(batches, None, recipe, lasso_lambda=0.002)

    expected = submodel(net, units, units.everything()).train()
    velocity = [torch.zeros_like(p) for p in expected.parameters()]
    penalty = GroupLasso(expected, units, units.everything())
    for number, indexes in enumerate(batches):
        inputs, labels = digits.batch(indexes)
        loss = F.cross_entropy(expected(inputs), labels)
        expected.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        penalty.add_gradient(0.002)
        with torch.no_grad():
            for parameter, v in zip(expected.parameters(), velocity, strict=True):
                assert parameter.grad is not None
                v.mul_(0.5).add_(parameter.grad + 0.01 * parameter)
                parameter.sub_(0.1 * v)
        assert float(losses[number]) == pytest.approx(loss.item(), rel=1e-5)
    for name, tensor in expected.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], tensor, rtol=1e-4, atol=1e-6)


def test_loading_shares_no_memory_with_the_model_or_the_task(
    net: nn.Module, units: UnitMap, digits: Samples, task: Tasks
) -> None:
    asked = task()
    before = {name: tensor.clone() for name, tensor in asked.state.items()}
    plain = PlainTrainer(net, units, digits)
    plain.load(asked.kept, dict(asked.state))
    plain.run([torch.arange(20)], None, asked.recipe, 0.0)
    assert all(torch.equal(asked.state[name], tensor) for name, tensor in before.items())
    assert all(torch.equal(net.state_dict()[name], tensor) for name, tensor in before.items())


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_state_is_apart_from_the_model_and_in_the_usual_layout(
    net: nn.Module, units: UnitMap, digits: Samples, task: Tasks, layout: torch.memory_format
) -> None:
    asked = task()
    plain = PlainTrainer(net, units, digits, layout)
    plain.load(asked.kept, dict(asked.state))
    state = plain.state()
    plain.run([torch.arange(20)], None, asked.recipe, 0.0)
    assert list(state) == list(asked.state)
    assert all(torch.equal(state[name], tensor) for name, tensor in asked.state.items())
    assert all(t.is_contiguous() and not t.requires_grad for t in state.values())


def test_the_moves_of_the_augmentation_are_applied(
    net: nn.Module, units: UnitMap, digits: Samples, task: Tasks
) -> None:
    asked = task()
    plain = PlainTrainer(net, units, digits)
    moves = torch.tensor([[0] * 20, [7] * 20, [1] * 20])
    plain.load(asked.kept, dict(asked.state))
    loss = plain.run([torch.arange(20)], [moves], asked.recipe, 0.0)
    inputs, labels = digits.batch(torch.arange(20))
    expected = submodel(net, units, asked.kept).train()(crop_and_flip(inputs, moves))
    assert float(loss) == pytest.approx(F.cross_entropy(expected, labels).item(), rel=1e-5)


def test_no_batches_leave_the_model_as_it_is(
    net: nn.Module, units: UnitMap, digits: Samples, task: Tasks
) -> None:
    asked = task()
    plain = PlainTrainer(net, units, digits)
    model = plain.load(asked.kept, dict(asked.state))
    assert len(plain.run([], None, asked.recipe, 0.1)) == 0
    assert all(torch.equal(model.state_dict()[n], t) for n, t in asked.state.items())


def test_parameters_that_do_not_train_stay_as_they_are(
    net: nn.Module, units: UnitMap, digits: Samples, task: Tasks
) -> None:
    frozen = submodel(net, units, units.everything())
    first = next(frozen.parameters())
    first.requires_grad_(False)
    plain = PlainTrainer(frozen, units, digits)
    model = plain.load(units.everything(), dict(task().state))
    plain.run([torch.arange(20)], None, task().recipe, 0.01)
    trained = model.state_dict()
    assert torch.equal(trained["0.weight"], first)
    assert not torch.equal(trained["4.weight"], net.state_dict()["4.weight"])


def test_on_a_cpu_training_is_the_plain_loop(
    net: nn.Module, units: UnitMap, digits: Samples
) -> None:
    assert isinstance(trainers(net, units, [digits], "bf16")[0], PlainTrainer)


def test_a_fresh_optimizer_begins_every_run(
    net: nn.Module, units: UnitMap, digits: Samples, task: Tasks
) -> None:
    recipe = replace(task().recipe, momentum=0.9)
    one, other = PlainTrainer(net, units, digits), PlainTrainer(net, units, digits)
    everything, batch = units.everything(), [torch.arange(20)]
    one.load(everything, dict(task().state))
    one.run(batch, None, recipe, 0.0)
    other.load(everything, one.state())
    one.run(batch, None, recipe, 0.0)
    other.run(batch, None, recipe, 0.0)
    assert all(torch.equal(one.state()[name], tensor) for name, tensor in other.state().items())
