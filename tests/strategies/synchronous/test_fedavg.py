from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from adaptcl.strategies import Job
from adaptcl.strategies.synchronous import FedAVG, FedAVGS, SynchronousSettings
from adaptcl.training import Arrival, Recipe, Task
from adaptcl.units import State

Jobs = Callable[..., Job]
Answers = Callable[..., Arrival]
Timelines = Callable[..., Any]


def weight(value: float) -> State:
    return {"weight": torch.tensor([[value]])}


def test_it_averages_models_by_the_number_of_samples(one_weight: Jobs, answered: Answers) -> None:
    strategy = FedAVGS(one_weight(3, 1), SynchronousSettings())
    tasks = strategy.start().tasks
    for task, value, samples in zip(tasks, (2.0, 4.0, 10.0), (1, 2, 1), strict=True):
        strategy.receive(answered(task, weight(value), samples=samples))
    # (2 + 2·4 + 10) / 4
    assert float(strategy.model()["weight"]) == 5


def test_everybody_trains_the_whole_model_every_round(
    with_batch_norm: Jobs, timeline: Timelines
) -> None:
    seen: list[Task] = []

    def train(task: Task) -> State:
        seen.append(task)
        return dict(task.state)

    strategy = FedAVGS(with_batch_norm(3, 4), SynchronousSettings())
    run = timeline(strategy, [3.0, 2.0, 1.0], train).start().run()
    assert len(seen) == 12
    assert all(bool(task.kept.all()) and task.pruning is None for task in seen)
    assert [closed.round for closed in run.closed] == [1, 2, 3, 4]
    assert run.now == 12  # always the slowest


def test_only_fedavg_s_trains_sparsely(one_weight: Jobs) -> None:
    job = one_weight(2, 1, recipe=Recipe(strength=0.7, learning_rate=0.3))
    plain = FedAVG(job, SynchronousSettings()).start().tasks[0].recipe
    sparse = FedAVGS(job, SynchronousSettings()).start().tasks[0].recipe
    assert (plain.strength, sparse.strength) == (0.0, 0.7)
    assert plain.learning_rate == sparse.learning_rate == 0.3
