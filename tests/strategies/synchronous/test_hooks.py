"""The hooks and views of `Synchronous`: what a subclass decides and what it may ask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from adaptcl.errors import SettingError
from adaptcl.strategies import Job, SubModelPlan, Synchronous, SynchronousSettings
from adaptcl.training import Arrival, Pruning, Recipe, Task
from adaptcl.units import State, retention, trace

Answered = Callable[..., Arrival]
Made = Callable[[State, State], Any]


def after_a_round(job: Job, answered: Answered, make: Made, worker_adds: float = 1.0) -> State:
    class Custom(Synchronous):
        def next_model(self, merged: State) -> State:
            made: State = make(merged, self.state)
            return made

    strategy = Custom(job, SynchronousSettings())
    for task in strategy.start().tasks:
        state = {name: tensor + worker_adds for name, tensor in task.state.items()}
        strategy.receive(answered(task, state))
    return strategy.state


def test_it_sees_the_merged_model_and_the_one_before(
    one_weight: Callable[..., Job], answered: Answered
) -> None:
    job = one_weight(2, 3)
    begun = job.state["weight"].clone()

    def twice_as_far(merged: State, before: State) -> State:
        return {name: before[name] + 2 * (merged[name] - before[name]) for name in merged}

    made = after_a_round(job, answered, twice_as_far, worker_adds=0.5)
    assert torch.allclose(made["weight"], begun + 1.0)


def test_a_tied_tensor_stays_one_under_all_of_its_names(answered: Answered) -> None:
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.ReLU(), nn.Linear(3, 3, bias=False))
    model[2].weight = model[0].weight
    units = trace(model, torch.rand(2, 3))
    assert units.tied == {"2.weight": "0.weight"}

    def only_the_trained(merged: State, _: State) -> State:
        for name in units.parameters:
            merged[name] = merged[name] + 7
        return merged

    state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    made = after_a_round(Job(units, state, 1, 3, Recipe(), 1), answered, only_the_trained)
    assert torch.equal(made["0.weight"], made["2.weight"])


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda merged, _: None, "Custom.next_model must return a dict with all tensors"),
        (lambda merged, _: {}, "Custom.next_model must return a dict with all tensors"),
        (lambda merged, _: {n: t.double() for n, t in merged.items()},
         "returns 'weight' as torch.float64 of shape [1, 1], but it must be torch.float32 of"),
        (lambda merged, _: {n: t.flatten() for n, t in merged.items()},
         "returns 'weight' as torch.float32 of shape [1], but it must be torch.float32 of shape "
         "[1, 1]."),
        (lambda merged, _: {n: t / 0 for n, t in merged.items()},
         "Custom.next_model returns 'weight' with values that are not finite in round 1"),
    ],
)  # fmt: skip
def test_what_is_no_model_is_refused(
    one_weight: Callable[..., Job], answered: Answered, make: Made, sentence: str
) -> None:
    with pytest.raises(SettingError) as refused:
        after_a_round(one_weight(1, 3), answered, make)
    assert sentence in str(refused.value)


# Sub-models -------------------------------------------------------------------------------------


def test_subclasses_say_what_each_worker_gets(
    halves: type[Synchronous], with_batch_norm: Callable[..., Job], answered: Answered
) -> None:
    job = with_batch_norm(2, 3)
    strategy = halves(job, SynchronousSettings())
    one, other = strategy.start().tasks
    assert one.state["0.weight"].shape == (4, 3)
    assert other.state["0.weight"].shape == (3, 3)
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
    assert [record.pruned_rate for record in reaction.closed.workers] == [-0.25, -0.25]


def test_units_that_no_worker_holds_count_as_cut(
    halves: type[Synchronous], with_batch_norm: Callable[..., Job]
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


# What happens to tasks and workers --------------------------------------------------------------


class Watching(Synchronous):
    """Asks worker 0 to cut half of its first layer in round 2, and notes what it hears."""

    def __init__(self, job: Job, settings: SynchronousSettings) -> None:
        super().__init__(job, settings)
        self.heard: list[tuple[object, ...]] = []

    def plan(self, worker: int) -> SubModelPlan:
        if worker == 0 and self.round == 2:
            return SubModelPlan(self.kept[worker], Pruning(0.5, "index"))
        return super().plan(worker)

    def received(self, task: Task, arrival: Arrival, rate: float) -> None:
        self.heard.append(("received", task.worker, task.round, rate))

    def returned(self, worker: int) -> None:
        self.heard.append(("returned", worker))

    def undone(self, worker: int, rate: float) -> None:
        self.heard.append(("undone", worker, rate))


@pytest.fixture
def watching(with_batch_norm: Callable[..., Job], answered: Answered) -> Watching:
    """In round 2, with both tasks open."""
    settings = SynchronousSettings(deadline=1.5, late_updates="drop")
    strategy = Watching(with_batch_norm(2, 9), settings)
    for task in strategy.start().tasks:
        strategy.receive(answered(task, dict(task.state)))
    strategy.heard.clear()
    return strategy


def test_a_subclass_hears_of_every_update_and_of_the_rate_that_was_carried_out(
    watching: Watching, answered: Answered
) -> None:
    pruning, other = watching.outstanding()
    assert [watching.open_rate(worker) for worker in (0, 1)] == [0.5, 0.0]
    watching.receive(answered(other, dict(other.state)))
    watching.expired()
    # The update is late and dropped, and has cut nothing.
    assert watching.receive(answered(pruning, dict(pruning.state))).dropped
    assert watching.heard == [("received", 1, 2, 0.0), ("received", 0, 2, 0.0)]


def test_a_task_that_will_not_be_answered_is_told_if_it_was_to_change_a_sub_model(
    watching: Watching,
) -> None:
    watching.lost(1)
    watching.lost(0)
    assert watching.heard == [("undone", 0, 0.5)]


def test_who_is_present_and_busy_can_be_asked(watching: Watching) -> None:
    assert [watching.is_busy(worker) for worker in (0, 1)] == [True, True]
    watching.lost(0)
    assert [watching.is_present(worker) for worker in (0, 1)] == [False, True]
    assert [watching.is_busy(worker) for worker in (0, 1)] == [False, True]
    assert watching.open_rate(0) == 0.0
    watching.heard.clear()
    watching.joined(0)
    watching.joined(1)
    assert watching.heard == [("returned", 0)], "the other was never away"
    assert watching.is_present(0)
