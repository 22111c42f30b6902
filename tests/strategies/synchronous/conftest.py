"""Synchronous rounds answered worker by worker, and a strategy that cuts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from adaptcl.records import WorkerRecord
from adaptcl.strategies import Job, Reaction
from adaptcl.strategies.synchronous import SubModelPlan, Synchronous, SynchronousSettings
from adaptcl.training import Arrival, Task

Begun = Callable[..., "Round"]
Overdue = Callable[..., "Round"]


class Round:
    """Hands answers to a strategy, worker by worker; its model is a single number."""

    def __init__(self, strategy: Synchronous, answered: Callable[..., Arrival]) -> None:
        self.strategy = strategy
        self._answered = answered
        self.open: dict[int, Task] = {}
        self.take(strategy.start())

    def take(self, reaction: Reaction) -> Reaction:
        self.open.update({task.worker: task for task in reaction.tasks})
        return reaction

    def answer(self, worker: int, value: float = 1.0, seconds: float = 1.0) -> Reaction:
        state = {"weight": torch.tensor([[value]])}
        arrival = self._answered(self.open.pop(worker), state, seconds=seconds)
        return self.take(self.strategy.receive(arrival))

    def value(self) -> float:
        """The global model."""
        return float(self.strategy.model()["weight"])


class Halves(Synchronous):
    """Everybody lacks unit 11, worker 1 also unit 0; the second round says sub-models grew."""

    def plan(self, worker: int) -> SubModelPlan:
        kept = self.units.everything()
        kept[11] = False
        if worker == 1:
            kept[0] = False
        return SubModelPlan(kept, growth=0.25 if self.round == 2 else 0.0)

    def learn(self, records: Sequence[WorkerRecord]) -> tuple[str, ...]:
        return (f"{len(records)} in round {self.round}",)


@pytest.fixture(scope="session")
def begun(one_weight: Callable[..., Job], answered: Callable[..., Arrival]) -> Begun:
    """The first of so many rounds of so many workers."""

    def begin(workers: int, rounds: int, **settings: Any) -> Round:
        strategy = Synchronous(one_weight(workers, rounds), SynchronousSettings(**settings))
        return Round(strategy, answered)

    return begin


@pytest.fixture(scope="session")
def overdue(begun: Begun) -> Overdue:
    """Round 2, after its deadline: worker 2 has not answered; the others sent 10 each."""

    def wait(late_updates: str = "count") -> Round:
        rounds = begun(3, 9, deadline=1.5, late_updates=late_updates)
        for worker, seconds in ((0, 1.0), (1, 2.0), (2, 8.0)):
            reaction = rounds.answer(worker, 4.0, seconds)
        assert reaction.deadline == 1.5 * 8
        rounds.answer(0, 10.0, 1.0)
        rounds.answer(1, 10.0, 2.0)
        return rounds

    return wait


@pytest.fixture(scope="session")
def halves() -> type[Synchronous]:
    """A strategy that gives unequal sub-models."""
    return Halves
