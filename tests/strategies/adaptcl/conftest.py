"""AdaptCL without training: workers whose update times follow from what they keep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from adaptcl import storage as snapshot
from adaptcl.engines.heterogeneity import heterogeneity
from adaptcl.strategies import Closed, Job, Reaction
from adaptcl.strategies.adaptcl import AdaptCL, AdaptCLSettings
from adaptcl.training import Arrival, PruningCost, Recipe, Task, Timing, Update
from adaptcl.units import State, UnitMap, recut, retention, trace

Times = Callable[[int, float, int], float]
"""(worker, retention, round) → update time."""
Changed = Callable[[Task], State]
Engines = Callable[..., "Engine"]
Lines = Callable[..., Times]

SCALES = ("1.weight", "4.weight")
"""The BN scales of the model's two layers."""


@cache
def model(width: int) -> tuple[UnitMap, State]:
    """Two layers of so many units each, of unequal importance.

    At a width of 40 one unit is about one percent of the parameters, at 200 four units are just
    below two.
    """
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(20, width), nn.BatchNorm1d(width), nn.ReLU(),
        nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(),
        nn.Linear(width, 4),
    )  # fmt: skip
    with torch.no_grad():
        for name in SCALES:
            net.get_parameter(name).uniform_(0.1, 1)
    return trace(net, torch.zeros(2, 20)), {n: t.clone() for n, t in net.state_dict().items()}


def unchanged(task: Task) -> State:
    return dict(task.state)


class Engine:
    """Answers every task as a worker would, without training, and keeps what it has seen."""

    def __init__(
        self,
        strategy: AdaptCL,
        times: Times,
        *,
        changed: Changed = unchanged,
        harm: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        self.strategy = strategy
        self.times = times
        self.changed = changed
        self.harm = harm
        """Importance lost and rise of the loss in every pruning."""
        self.restarted: set[int] = set()
        """Workers that do not answer warm from their next task."""
        self.open: dict[int, Task] = {}
        self.tasks: list[Task] = []
        self.closed: list[Closed] = []

    def start(self) -> Engine:
        self.take(self.strategy.start())
        return self

    def until(self, round: int) -> Engine:
        """Go on until that round has begun."""
        while self.strategy.round < round and not self.strategy.finished:
            self.answer(min(self.open))
        return self

    def answer(self, worker: int) -> Reaction:
        return self.take(self.strategy.receive(self.arrival(self.open.pop(worker))))

    def lose(self, worker: int) -> Reaction:
        self.open.pop(worker, None)
        return self.take(self.strategy.lost(worker))

    def join(self, worker: int) -> Reaction:
        return self.take(self.strategy.joined(worker))

    def expire(self) -> Reaction:
        return self.take(self.strategy.expired())

    def arrival(self, task: Task) -> Arrival:
        kept, cut, units = task.kept, None, self.strategy.units
        if task.pruning:
            importance = task.pruning.importance
            importance = torch.rand(units.count) if importance is None else importance
            kept = task.pruning.units_left(units, task.kept, importance)
            lost, jump = self.harm
            cut = PruningCost(lost, 1.0, 1.0 + jump)
        state = recut(self.changed(task), units, task.kept, kept)
        seconds = self.times(task.worker, retention(units, task.kept), task.round)
        update = Update(task.worker, task.round, state, kept, 10, 1.0, cut)
        is_cold = task.worker in self.restarted
        self.restarted.discard(task.worker)
        return Arrival(update, Timing(0.0, seconds, 0.0, is_cold=is_cold))

    def take(self, reaction: Reaction) -> Reaction:
        self.tasks.extend(reaction.tasks)
        self.open.update({task.worker: task for task in reaction.tasks})
        if reaction.closed:
            self.closed.append(reaction.closed)
        return reaction

    def resumed(self, folder: Path) -> Engine:
        """The same moment with a new strategy, made from what a checkpoint file holds."""
        snapshot.save(folder / "checkpoint", self.strategy.snapshot())
        strategy = AdaptCL(self.strategy.job, self.strategy.settings)
        strategy.restore(snapshot.load(folder / "checkpoint"))
        other = Engine(strategy, self.times, changed=self.changed, harm=self.harm)
        other.closed = list(self.closed)
        other.open = {task.worker: task for task in strategy.outstanding()}
        return other

    def rates(self) -> dict[int, list[float]]:
        """By round, the pruned rates carried out in it (negative: grown), where any were."""
        found = {c.round: [w.pruned_rate for w in c.workers] for c in self.closed}
        return {round: rates for round, rates in found.items() if any(rates)}

    def retentions(self) -> list[float]:
        return [retention(self.strategy.units, kept) for kept in self.strategy.kept]

    def spread(self) -> list[float]:
        return [heterogeneity([w.update_time_s for w in c.workers]) for c in self.closed]


@pytest.fixture(scope="session")
def engine() -> Engines:
    """An engine whose strategy has started and, unless set otherwise, prunes every third round."""

    def start(
        times: Times,
        *,
        workers: int = 3,
        width: int = 40,
        other: tuple[UnitMap, State] | None = None,
        state: State | None = None,
        changed: Changed = unchanged,
        harm: tuple[float, float] = (0.0, 0.0),
        time_noise: float = 0.0,
        rounds: int = 99,
        **settings: Any,
    ) -> Engine:
        """`other` is another model, `state` are tensors that take the place of the model's own."""
        units, own = other or model(width)
        is_steady = not settings.get("grow", False)
        first = {**own, **(state or {})}
        job = Job(units, first, workers, rounds, Recipe(), 5, time_noise, is_steady)
        strategy = AdaptCL(job, AdaptCLSettings(**{"pruning_interval": 3, **settings}))
        return Engine(strategy, times, changed=changed, harm=harm).start()

    return start


@pytest.fixture(scope="session")
def line() -> Lines:
    """Update times of a fixed part and a part in proportion to retention."""

    def times(*slopes: float) -> Times:
        return lambda worker, kept, _: 10 + slopes[worker] * kept

    return times


@pytest.fixture(scope="session")
def changing(line: Lines) -> Lines:
    """Slopes that change in one round."""

    def times(before: Sequence[float], after: Sequence[float], at: int) -> Times:
        early, late = line(*before), line(*after)
        return lambda worker, kept, round: (early if round < at else late)(worker, kept, round)

    return times


@pytest.fixture(scope="session")
def shuffled_scales() -> Changed:
    """Training that turns the importance of units upside down every round."""

    def flipped(task: Task) -> State:
        return {n: tensor.flip(0) if n in SCALES else tensor for n, tensor in task.state.items()}

    return flipped
