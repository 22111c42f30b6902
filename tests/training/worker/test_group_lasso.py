"""The strength of a worker's group lasso: found once, remembered, scaled by the server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from torch import nn
from torch.nn import functional as F

from adaptcl.data import Samples
from adaptcl.seeds import generator
from adaptcl.training import Task
from adaptcl.training.batches import batches
from adaptcl.training.group_lasso import GroupLasso
from adaptcl.training.worker import Worker, WorkerMemory
from adaptcl.units import State, UnitMap, submodel

Tasks = Callable[..., Task]
Same = Callable[[State, State], bool]
KNOWN = WorkerMemory(lasso_lambda=0.001)


def test_lambda_is_found_on_the_first_batch_and_remembered(
    worker: Worker, task: Tasks, net: nn.Module, units: UnitMap, digits: Samples
) -> None:
    _, memory = worker.carry_out(task(strength=0.3), WorkerMemory())
    assert memory.lasso_lambda is not None
    first = next(batches(80, 16, 1, generator(7, "batches", 0, 1)))
    inputs, labels = digits.batch(first)
    model = submodel(net, units, units.everything()).train()
    loss = F.cross_entropy(model(inputs), labels).item()
    lasso = memory.lasso_lambda * GroupLasso(model, units, units.everything()).penalty()
    assert lasso / (loss + lasso) == pytest.approx(0.3, rel=1e-5)


def test_a_remembered_lambda_is_used_and_kept(same: Same, worker: Worker, task: Tasks) -> None:
    update, memory = worker.carry_out(task(strength=0.3), WorkerMemory(lasso_lambda=0.01))
    other, _ = worker.carry_out(task(strength=0.3), WorkerMemory(lasso_lambda=0.02))
    assert memory.lasso_lambda == 0.01
    assert not same(update.state, other.state)


def test_a_lambda_that_is_told_counts_where_none_is_known(
    same: Same, worker: Worker, task: Tasks
) -> None:
    told, memory = worker.carry_out(replace(task(strength=0.3), lasso_lambda=0.01), WorkerMemory())
    known, kept = worker.carry_out(replace(task(strength=0.3), lasso_lambda=0.02), memory)
    assert same(told.state, known.state)
    assert (memory.lasso_lambda, kept.lasso_lambda) == (0.01, 0.01)


def test_an_update_says_which_lambda_its_worker_has(worker: Worker, task: Tasks) -> None:
    found, memory = worker.carry_out(task(strength=0.3), WorkerMemory())
    told, _ = worker.carry_out(replace(task(strength=0.3), lasso_lambda=0.02), WorkerMemory())
    known, _ = worker.carry_out(task(strength=0.3), KNOWN)
    assert (found.lasso_lambda, told.lasso_lambda, known.lasso_lambda) == (
        memory.lasso_lambda,
        0.02,
        0.001,
    )


def test_a_round_of_plain_training_finds_the_lambda_of_later_rounds(
    same: Same, worker: Worker, task: Tasks
) -> None:
    plain, memory = worker.carry_out(replace(task(strength=0.3), is_sparse=False), WorkerMemory())
    without, _ = worker.carry_out(task(strength=0.0), WorkerMemory())
    sparse, found = worker.carry_out(task(strength=0.3), WorkerMemory())
    assert same(plain.state, without.state)
    assert not same(plain.state, sparse.state)
    assert plain.lasso_lambda == memory.lasso_lambda == found.lasso_lambda


def test_no_strength_means_no_lasso(same: Same, worker: Worker, task: Tasks) -> None:
    update, memory = worker.carry_out(task(strength=0.0), WorkerMemory())
    plain, _ = worker.carry_out(task(strength=0.5), WorkerMemory(lasso_lambda=0.0))
    assert memory.lasso_lambda in (None, 0.0)
    assert same(update.state, plain.state)


def test_the_lasso_makes_units_smaller(
    worker: Worker, task: Tasks, net: nn.Module, units: UnitMap
) -> None:
    def penalty(strength: float) -> float:
        update, _ = worker.carry_out(task(strength=strength, epochs=6), WorkerMemory())
        model = submodel(net, units, update.kept, update.state)
        return GroupLasso(model, units, update.kept).penalty()

    assert penalty(0.9) < 0.8 * penalty(0.0)
