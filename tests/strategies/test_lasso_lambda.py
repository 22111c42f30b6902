"""Strategies tell later workers the λ that others found on the first model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import adaptcl
from adaptcl import data, models
from adaptcl import storage as snapshot
from adaptcl.strategies import Job, Reaction, Strategy
from adaptcl.strategies.ssp import SSP
from adaptcl.strategies.synchronous import FedAVGS
from adaptcl.training import Arrival, Task, Update
from adaptcl.training.worker import Worker, WorkerMemory


class Asked:
    """Answers tasks with a λ of each worker's own."""

    def __init__(self, strategy: Strategy, answered: Callable[..., Arrival]) -> None:
        self.strategy = strategy
        self._answered = answered
        self.open: dict[int, Task] = {}
        self.take(strategy.start())

    def take(self, reaction: Reaction) -> None:
        self.open.update({task.worker: task for task in reaction.tasks})

    def answer(self, workers: Sequence[int]) -> None:
        for worker in workers:
            task = self.open.pop(worker)
            arrival = self._answered(task, dict(task.state))
            found = (worker + 1) / 100 if task.lasso_lambda is None else task.lasso_lambda
            update = replace(arrival.update, lasso_lambda=found)
            self.take(self.strategy.receive(replace(arrival, update=update)))


def test_with_a_barrier_the_first_round_decides(
    one_weight: Callable[..., Job], answered: Callable[..., Arrival], tmp_path: Path
) -> None:
    job = one_weight(4, 9)
    asked = Asked(FedAVGS(job, FedAVGS.Settings()), answered)
    asked.take(asked.strategy.lost(3))
    assert [task.lasso_lambda for task in asked.strategy.outstanding()] == [None] * 3
    asked.answer([2, 0, 1])
    asked.take(asked.strategy.joined(3))
    assert [asked.open[worker].lasso_lambda for worker in range(4)] == [pytest.approx(0.02)] * 4
    snapshot.save(tmp_path / "file", asked.strategy.snapshot())
    other = FedAVGS(job, FedAVGS.Settings())
    other.restore(snapshot.load(tmp_path / "file"))
    assert [task.lasso_lambda for task in other.outstanding()] == [pytest.approx(0.02)] * 4
    asked.answer([0, 1, 2, 3])
    assert asked.open[3].lasso_lambda == pytest.approx(0.02)


def test_without_one_those_decide_who_began_with_the_first_model(
    one_weight: Callable[..., Job], answered: Callable[..., Arrival], tmp_path: Path
) -> None:
    job = one_weight(3, 9)
    asked = Asked(SSP(job, SSP.Settings()), answered)
    asked.take(asked.strategy.lost(2))
    asked.answer([0, 0, 1])
    asked.take(asked.strategy.joined(2))
    assert asked.open[2].lasso_lambda == pytest.approx(0.015)
    snapshot.save(tmp_path / "file", asked.strategy.snapshot())
    other = SSP(job, SSP.Settings())
    other.restore(snapshot.load(tmp_path / "file"))
    assert {t.worker: t.lasso_lambda for t in other.outstanding()}[2] == pytest.approx(0.015)


# In runs ----------------------------------------------------------------------------------------


def lassos_of(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> dict[int, float | None]:
    """The λ that each worker of a simulation went by in the end."""
    lassos: dict[int, float | None] = {}
    carry_out = Worker.carry_out

    def watched(self: Worker, task: Task, memory: WorkerMemory) -> tuple[Update, WorkerMemory]:
        update, memory = carry_out(self, task, memory)
        lassos[self.number] = update.lasso_lambda
        return update, memory

    monkeypatch.setattr(Worker, "carry_out", watched)
    digits = data.load("digits")
    model = models.build("small", digits.train.shape, 10, 1)
    adaptcl.run(model, digits.train, digits.test, **settings)
    return lassos


@pytest.mark.slow
def test_when_a_worker_is_first_drawn_hardly_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    lassos = lassos_of(
        monkeypatch, strategy="fedavg-s", workers=8, participants=2, rounds=10, evaluate_every=10
    )
    known = [each for each in lassos.values() if each is not None]
    assert len(known) > 5
    assert max(known) < 1.1 * min(known)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["adaptcl", "ssp-s"])
def test_where_everybody_is_there_from_the_start_each_has_its_own(
    monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    lassos = lassos_of(
        monkeypatch, strategy=strategy, workers=3, rounds=2, epochs=0.5, evaluate_every=2
    )
    assert None not in lassos.values()
    assert len(set(lassos.values())) == 3
