"""Strategies without training: jobs around tiny models, and an engine of a few lines.

The fixtures are functions and classes without state, so one of each serves the whole session
(and may be used in Hypothesis tests).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import adaptcl
from adaptcl import data
from adaptcl import storage as snapshot
from adaptcl.runs.result import FinishedRun
from adaptcl.strategies import STRATEGIES, Closed, Job, Reaction, Strategy
from adaptcl.training import Arrival, Recipe, Task, Timing, Update
from adaptcl.units import Kept, State, trace

Train = Callable[[Task], State]


def pulled_towards_its_worker(task: Task) -> State:
    """Stands for training: a pure function of the task, different for each worker and round."""
    aim = task.worker + 1 / task.round
    return {
        name: tensor + 0.5 * (aim - tensor) if tensor.is_floating_point() else tensor + task.round
        for name, tensor in task.state.items()
    }


def _answered(
    task: Task, state: State, *, samples: int = 1, seconds: float = 1.0, kept: Kept | None = None
) -> Arrival:
    update = Update(
        worker=task.worker,
        round=task.round,
        state=state,
        kept=task.kept if kept is None else kept,
        samples=samples,
        loss=1.0,
    )
    return Arrival(update, Timing(0.0, seconds, 0.0))


class Timeline:
    """An engine: worker w answers `times[w]` seconds after each task; ties go by number."""

    def __init__(
        self, strategy: Strategy, times: Sequence[float], train: Train = pulled_towards_its_worker
    ) -> None:
        self.strategy = strategy
        self.times = times
        self.train = train
        self.now = 0.0
        self.open: dict[int, tuple[float, Task]] = {}
        self.arrivals: list[tuple[float, int]] = []
        """When which worker's updates arrived."""
        self.closed: list[Closed] = []

    def start(self) -> Timeline:
        self._act(self.strategy.start())
        return self

    def step(self) -> None:
        """Let the next update arrive."""
        self.now, worker = min((when, worker) for worker, (when, _) in self.open.items())
        _, task = self.open.pop(worker)
        self.arrivals.append((self.now, worker))
        self._act(self.strategy.receive(self._arrival(task)))

    def run(self, rounds: int | None = None) -> Timeline:
        """Go on to the end, or until so many rounds have closed."""
        while not self.strategy.finished and (rounds is None or len(self.closed) < rounds):
            self.step()
        return self

    def lose(self, worker: int) -> None:
        self.open.pop(worker, None)
        self._act(self.strategy.lost(worker))

    def join(self, worker: int) -> None:
        self._act(self.strategy.joined(worker))

    def resumed(self, strategy: Strategy, folder: Path) -> Timeline:
        """The same moment with a new strategy, made from what a checkpoint file holds."""
        snapshot.save(folder / "checkpoint", self.strategy.snapshot())
        strategy.restore(snapshot.load(folder / "checkpoint"))
        other = Timeline(strategy, self.times, self.train)
        other.now = self.now
        other.open = {t.worker: (self.open[t.worker][0], t) for t in strategy.outstanding()}
        other.arrivals, other.closed = list(self.arrivals), list(self.closed)
        return other

    def assert_ends_like(self, other: Timeline) -> None:
        """The same updates at the same times, and the same model bit for bit."""
        assert self.arrivals == other.arrivals
        theirs = other.strategy.model()
        for name, tensor in self.strategy.model().items():
            assert torch.equal(tensor, theirs[name]), name

    def _act(self, reaction: Reaction) -> None:
        for task in reaction.tasks:
            assert task.worker not in self.open
            self.open[task.worker] = (self.now + self.times[task.worker], task)
        if reaction.closed is not None:
            self.closed.append(reaction.closed)

    def _arrival(self, task: Task) -> Arrival:
        return _answered(task, self.train(task), seconds=self.times[task.worker])


@pytest.fixture(scope="session")
def timeline() -> type[Timeline]:
    """An engine of a few lines."""
    return Timeline


@pytest.fixture(scope="session")
def answered() -> Callable[..., Arrival]:
    """The arrival of an answer to a task."""
    return _answered


@pytest.fixture(scope="session")
def one_weight() -> Callable[..., Job]:
    """A job whose model is a single number: `weight`, which begins at `start`."""
    units = trace(nn.Linear(1, 1, bias=False), torch.zeros(1, 1))

    def job(workers: int, rounds: int, start: float = 0.0, recipe: Recipe | None = None) -> Job:
        state = {"weight": torch.tensor([[start]])}
        return Job(units, state, workers, rounds, recipe or Recipe(), seed=1)

    return job


@pytest.fixture(scope="session")
def with_batch_norm() -> Callable[..., Job]:
    """A job whose model has two layers of four and eight units, each with a batch norm."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(),
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(),
        nn.Linear(8, 2),
    )  # fmt: skip
    units = trace(model, torch.zeros(2, 3))

    def job(workers: int, rounds: int, recipe: Recipe | None = None) -> Job:
        state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        return Job(units, state, workers, rounds, recipe or Recipe(), seed=1)

    return job


@pytest.fixture(scope="session")
def learn() -> Callable[..., FinishedRun]:
    """Four unequal workers really learn the digits; about a third of a second."""

    def run(strategy: str, **settings: Any) -> FinishedRun:
        torch.manual_seed(0)
        digits = data.load("digits")
        model = nn.Sequential(
            nn.Flatten(),
            nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(),
            nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU(),
            nn.Linear(32, 10),
        )  # fmt: skip
        defaults: dict[str, Any] = {"workers": 4, "rounds": 6, "threads": 1}
        if "strength" not in getattr(STRATEGIES.get(strategy), "unused", ()):
            defaults["strength"] = 0.1
        return adaptcl.run(
            model, digits.train, digits.test, strategy=strategy, **{**defaults, **settings}
        )

    return run
