"""What a subclass decides: each worker's sub-model, its pruning and the lasso."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from adaptcl.strategies import Job
from adaptcl.strategies.synchronous import Synchronous, SynchronousSettings
from adaptcl.training import Arrival
from adaptcl.units import retention

Jobs = Callable[..., Job]
Answers = Callable[..., Arrival]


def test_subclasses_say_what_each_worker_gets(
    halves: type[Synchronous], with_batch_norm: Jobs, answered: Answers
) -> None:
    job = with_batch_norm(2, 3)
    strategy = halves(job, SynchronousSettings())
    one, other = strategy.start().tasks
    assert one.state["0.weight"].shape == (4, 3)
    assert other.state["0.weight"].shape == (3, 3)
    assert one.lasso_scale == 2
    strategy.receive(answered(one, one.state))
    reaction = strategy.receive(answered(other, other.state))
    assert reaction.closed is not None
    assert reaction.closed.warnings == ("2 in round 1",)
    assert reaction.closed.similarity is None
    assert [w.retention for w in reaction.closed.workers] == [
        retention(job.units, task.kept) for task in (one, other)
    ]
    for task in reaction.tasks:
        reaction = strategy.receive(answered(task, task.state))
    assert reaction.closed is not None
    # Three of four units in common, and all seven of the other layer.
    assert reaction.closed.similarity == pytest.approx((3 / 4 + 1) / 2)
    assert [record.pruned_rate for record in reaction.closed.workers] == [0.25, 0.25]


def test_units_that_no_worker_holds_count_as_cut(
    halves: type[Synchronous], with_batch_norm: Jobs
) -> None:
    job = with_batch_norm(2, 3)
    strategy = halves(job, SynchronousSettings())
    strategy.start()
    model = strategy.model()
    assert not model["4.weight"][7].any()
    assert not model["3.weight"][7].any()
    assert torch.equal(model["0.weight"], job.state["0.weight"])
    assert torch.equal(job.state["4.weight"], torch.ones(8))
    assert [kept.int().tolist()[0] for kept in strategy.sub_models()] == [1, 0]
