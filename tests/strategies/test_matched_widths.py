"""Widths that are matched to measured update times, in HeteroFL and FLuID."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from adaptcl.strategies import Job, Synchronous
from adaptcl.strategies.fluid import FLuID, FLuIDSettings
from adaptcl.strategies.heterofl import HeteroFL, HeteroFLSettings
from adaptcl.training import Arrival, Recipe, Task
from adaptcl.units import retention, trace

Answers = Callable[..., Arrival]
Begun = Callable[..., "Rounds"]

NARROWEST = 0.016
"""A little more than the retention of the narrowest sub-model of this model."""


def wide_layers(workers: int, time_noise: float) -> Job:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)
    )
    units = trace(model, torch.zeros(1, 8))
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    return Job(units, state, workers, 99, Recipe(), seed=1, time_noise=time_noise)


class Rounds:
    """Rounds in which a share of everybody's time, `overhead`, does not shrink with the size."""

    def __init__(
        self, strategy: Synchronous, answered: Answers, whole: Sequence[float], overhead: float
    ) -> None:
        self.strategy, self.answered = strategy, answered
        self.whole, self.overhead = list(whole), overhead
        self.open = {task.worker: task for task in strategy.start().tasks}

    def time(self, task: Task) -> float:
        size = retention(self.strategy.units, task.kept)
        return self.whole[task.worker] * (self.overhead + (1 - self.overhead) * size)

    def answer(self, worker: int, slow: float = 1.0, is_cold: bool = False) -> None:
        task = self.open.pop(worker)
        arrival = self.answered(task, dict(task.state), seconds=self.time(task) * slow)
        arrival = replace(arrival, timing=replace(arrival.timing, is_cold=is_cold))
        self._take(self.strategy.receive(arrival).tasks)

    def expire(self) -> None:
        self._take(self.strategy.expired().tasks)

    def play(self, rounds: int = 1, slow: Mapping[int, float] | None = None) -> Rounds:
        for _ in range(rounds):
            for worker in sorted(self.open):
                self.answer(worker, (slow or {}).get(worker, 1.0))
        return self

    def times(self) -> list[float]:
        """How long each worker takes in the round that has begun."""
        return [self.time(task) for _, task in sorted(self.open.items())]

    def sizes(self) -> list[float]:
        return [retention(self.strategy.units, t.kept) for _, t in sorted(self.open.items())]

    def _take(self, tasks: Sequence[Task]) -> None:
        self.open.update({task.worker: task for task in tasks})


@pytest.fixture
def begun(answered: Answers) -> Begun:
    def begin(
        whole: Sequence[float], overhead: float, time_noise: float = 0.0, **settings: Any
    ) -> Rounds:
        job = wide_layers(len(whole), time_noise)
        matched = HeteroFLSettings(worker_widths="matched")
        return Rounds(HeteroFL(job, replace(matched, **settings)), answered, whole, overhead)

    return begin


@pytest.mark.parametrize("overhead", [0.0, 0.3])
def test_two_measurements_make_workers_equally_fast(begun: Begun, overhead: float) -> None:
    rounds = begun([20.0, 15.0, 10.0], overhead).play(2)
    assert rounds.times() == pytest.approx([10.0] * 3, rel=0.05)
    assert rounds.sizes()[2] == 1.0


def test_widths_stay_once_they_match_and_follow_a_worker_that_becomes_slower(begun: Begun) -> None:
    rounds = begun([20.0, 10.0], 0.3).play(2)
    matched = rounds.sizes()
    assert rounds.play(3).sizes() == matched
    rounds.whole[0] = 30.0
    assert rounds.play(2).times() == pytest.approx([10.0, 10.0], rel=0.05)
    rounds.whole[0] = 10.0
    assert rounds.play(2).sizes() == pytest.approx([1.0, 1.0], abs=0.1)


def test_a_time_that_no_width_can_reach_ends_at_the_narrowest_level(begun: Begun) -> None:
    assert begun([20.0, 10.0], 0.9).play(8).sizes()[0] < NARROWEST


@pytest.mark.parametrize("slow", [1.7, 3.0])
@pytest.mark.parametrize("strategy", ["heterofl", "fluid"])
def test_one_slow_round_is_made_good_and_nobody_else_is_cut_for_it(
    begun: Begun, answered: Answers, strategy: str, slow: float
) -> None:
    whole = [10.0, 8.0, 6.0, 5.0]
    rounds = begun(whole, 0.1)
    if strategy == "fluid":
        fluid = FLuID(wide_layers(4, 0.0), FLuIDSettings(straggler_share=0.75))
        rounds = Rounds(fluid, answered, whole, 0.1)
    others = rounds.play(1).sizes()[1:]
    rounds.play(1, slow={0: slow})
    for _ in range(8):
        assert rounds.play(1).sizes()[1:] == others
        assert max(rounds.times()) < 5.5
    assert rounds.times()[0] > 4.4


def test_noise_is_not_taken_for_a_time_that_does_not_shrink(begun: Begun) -> None:
    rounds = begun([8.0, 5.0], 0.0, time_noise=0.1).play(1)
    rounds.play(1, slow={0: 1.4})
    for _ in range(5):
        assert rounds.sizes()[0] > 0.4
        assert rounds.sizes()[1] == 1.0
        rounds.play(1)


def test_the_first_time_after_a_restart_does_not_count(begun: Begun) -> None:
    rounds = begun([20.0, 10.0], 0.0).play(2)
    matched = rounds.sizes()
    rounds.answer(0, slow=5.0, is_cold=True)
    rounds.answer(1)
    assert rounds.sizes() == matched


def test_a_late_update_that_is_dropped_tells_how_slow_its_worker_is(begun: Begun) -> None:
    rounds = begun([10.0, 10.0], 0.0, deadline=1.5, late_updates="drop").play(1)
    rounds.whole[0] = 30.0
    rounds.answer(1)
    rounds.expire()
    rounds.answer(0)
    rounds.answer(1)  # the round begins in which worker 0 was offered the whole model once more
    rounds.expire()
    rounds.answer(0)
    assert rounds.times() == pytest.approx([10.0, 10.0], rel=0.05)


def test_the_share_of_stragglers_is_counted_without_rounding_errors(answered: Answers) -> None:
    assert math.floor(0.29 * 100) == 28
    fluid = FLuID(wide_layers(100, 0.0), FLuIDSettings(straggler_share=0.29))
    rounds = Rounds(fluid, answered, [2.0] * 29 + [1.0] * 71, 0.0).play(1)
    assert sum(size < 1 for size in rounds.sizes()) == 29
