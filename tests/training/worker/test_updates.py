"""What a worker makes of a task in which nothing is pruned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adaptcl.data import Samples
from adaptcl.seeds import generator
from adaptcl.training import Pruning, Task
from adaptcl.training.batches import batches
from adaptcl.training.objectives.evaluation import score
from adaptcl.training.worker import Worker, WorkerMemory
from adaptcl.units import State, UnitMap, submodel

Tasks = Callable[..., Task]
Same = Callable[[State, State], bool]
KNOWN = WorkerMemory(lasso_lambda=0.001)


def test_an_update_answers_its_task(same: Same, worker: Worker, task: Tasks) -> None:
    asked = task(round=4)
    update, _ = worker.carry_out(asked, WorkerMemory())
    assert (update.worker, update.round, update.samples) == (0, 4, 80)
    assert torch.equal(update.kept, asked.kept)
    assert update.pruning_cost is None
    assert not same(update.state, dict(asked.state))


def test_the_task_and_the_model_are_not_written_to(
    same: Same, worker: Worker, task: Tasks, net: nn.Module, order: Tensor
) -> None:
    asked = task(pruning=Pruning(0.3, "index", order), beta=0.5)
    before = {name: tensor.clone() for name, tensor in asked.state.items()}
    worker.carry_out(asked, WorkerMemory())
    assert same(dict(asked.state), before)
    assert same(net.state_dict(), before)


def test_the_reported_loss_is_the_mean_over_the_batches(
    worker: Worker, task: Tasks, net: nn.Module, units: UnitMap, digits: Samples
) -> None:
    asked = task(epochs=0.2)  # one batch, seen by the untrained model
    update, _ = worker.carry_out(asked, KNOWN)
    first = next(batches(80, 16, 1, generator(7, "batches", 0, 1)))
    inputs, labels = digits.batch(first)
    loss = F.cross_entropy(submodel(net, units, asked.kept).train()(inputs), labels)
    assert update.loss == pytest.approx(loss.item(), rel=1e-5)


def test_a_round_of_no_steps_gives_the_model_back_and_finds_lambda_all_the_same(
    same: Same, worker: Worker, task: Tasks
) -> None:
    asked = replace(task(epochs=0.05), carries_fractions=True)
    update, memory = worker.carry_out(asked, WorkerMemory())
    assert asked.mini_batch_count(80) == 0
    assert same(update.state, dict(asked.state))
    assert 0 < update.loss < 10
    assert memory.lasso_lambda
    trained, _ = worker.carry_out(replace(asked, round=3), WorkerMemory())
    assert replace(asked, round=3).mini_batch_count(80) == 1
    assert not same(trained.state, dict(asked.state))


@pytest.mark.parametrize(("epochs", "expected"), [(0.5, 2), (1, 5), (2.4, 12), (0.001, 1)])
def test_fractions_of_an_epoch_are_trained(
    worker: Worker, task: Tasks, epochs: float, expected: int
) -> None:
    update, _ = worker.carry_out(task(epochs=epochs), KNOWN)
    assert int(update.state["1.num_batches_tracked"]) == expected


def test_training_lowers_the_loss_and_learns(
    worker: Worker, task: Tasks, net: nn.Module, units: UnitMap, digits: Samples
) -> None:
    memory, state, losses = WorkerMemory(), task().state, []
    for number in range(1, 9):
        update, memory = worker.carry_out(task(round=number, state=state), memory)
        state = update.state
        losses.append(update.loss)
    assert losses[-1] < 0.3 * losses[0]
    assert score(submodel(net, units, units.everything(), state), digits).metrics["accuracy"] > 0.9


@pytest.mark.parametrize("augmentation", [False, True])
def test_the_same_task_gives_the_same_update_bit_for_bit(
    same: Same, net: nn.Module, units: UnitMap, digits: Samples, task: Tasks, augmentation: bool
) -> None:
    updates = [
        Worker(0, digits, net, units, seed=7).carry_out(
            task(round=2, augmentation=augmentation), WorkerMemory()
        )[0]
        for _ in range(2)
    ]
    assert same(updates[0].state, updates[1].state)
    assert updates[0].loss == updates[1].loss


def test_worker_round_seed_and_augmentation_change_the_update(
    same: Same, net: nn.Module, units: UnitMap, digits: Samples, task: Tasks
) -> None:
    def state(number: int = 0, seed: int = 7, round: int = 1, **recipe: bool) -> State:
        asked = task(worker=number, round=round, **recipe)
        return Worker(number, digits, net, units, seed).carry_out(asked, KNOWN)[0].state

    others = [state(number=1), state(seed=8), state(round=2), state(augmentation=True)]
    assert not any(same(state(), other) for other in others)
