"""What a subclass makes of a merged model becomes the next global model, if it is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from adaptcl.errors import SettingError
from adaptcl.strategies import Job, Synchronous, SynchronousSettings
from adaptcl.training import Arrival, Recipe
from adaptcl.units import State, trace

Answered = Callable[..., Arrival]
Made = Callable[[State, State], Any]


def after_a_round(job: Job, answered: Answered, make: Made, worker_adds: float = 1.0) -> State:
    class Own(Synchronous):
        def next_model(self, merged: State) -> State:
            made: State = make(merged, self.state)
            return made

    strategy = Own(job, SynchronousSettings())
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
        (lambda merged, _: None, "Own.next_model must give a dict with all tensors of the model"),
        (lambda merged, _: {}, "Own.next_model must give a dict with all tensors of the model"),
        (lambda merged, _: {n: t.double() for n, t in merged.items()},
         "gives 'weight' as torch.float64 of shape [1, 1], but it must be torch.float32 of"),
        (lambda merged, _: {n: t.flatten() for n, t in merged.items()},
         "gives 'weight' as torch.float32 of shape [1], but it must be torch.float32 of shape "
         "[1, 1]."),
        (lambda merged, _: {n: t / 0 for n, t in merged.items()},
         "Own.next_model gives 'weight' with values that are not finite, in round 1, of updates"),
    ],
)  # fmt: skip
def test_what_is_no_model_is_refused(
    one_weight: Callable[..., Job], answered: Answered, make: Made, sentence: str
) -> None:
    with pytest.raises(SettingError) as refused:
        after_a_round(one_weight(1, 3), answered, make)
    assert sentence in str(refused.value)
