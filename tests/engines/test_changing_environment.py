"""A worker's bandwidth falls to a third at one third of the run and recovers at two thirds."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch

from adaptcl import models
from adaptcl.config.config import configure
from adaptcl.config.files import override, preset
from adaptcl.engines.environment import Environment
from adaptcl.engines.loop import Loop
from adaptcl.engines.simulation import SimulatedTransport
from adaptcl.events import Event, RoundFinished
from adaptcl.records import RoundRecord
from adaptcl.runs.forecast import Untested, Untrained
from adaptcl.strategies import Job, strategy_class
from adaptcl.units import trace

INTERVAL = 2
ROUNDS = 42
WORKERS = 10
FALLS, RECOVERS = 500, 1000


def rounds(folder: Path, *, grow: bool) -> tuple[RoundRecord, ...]:
    """Nothing is trained: what is looked at are sizes and times, which do not depend on it."""
    path = folder / "trace.csv"
    path.write_text(
        f"time_s,worker,bandwidth,speed,available\n{FALLS},4,0.3333,1,1\n{RECOVERS},4,1,1,1\n"
    )
    values: dict[str, object] = {
        **{"strategy": "adaptcl", "rounds": ROUNDS, "workers": WORKERS, "grow": grow},
        **{"pruning": "index", "pruning_interval": INTERVAL, "trace": str(path)},
        **{"sigma": 2.0, "alpha": 2.0, "max_pruned_rate": 0.5, "min_retention": 0.1},
    }
    chosen = configure(override(preset("default"), values))
    job, recipe = chosen.job, chosen.recipe
    units = trace(models.build("small", (1, 8, 8), 10, seed=1), torch.zeros(2, 1, 8, 8))
    samples = [100] * WORKERS
    environment = Environment(chosen.environment, units, WORKERS, recipe.epochs, job.seed, samples)
    strategy = strategy_class(job.strategy)(
        Job(units, {}, WORKERS, ROUNDS, recipe, job.seed), chosen.strategy
    )
    untrained = Untrained(units, samples, chosen.codecs)
    transport = SimulatedTransport(untrained, environment, WORKERS, threads=1)
    found: list[RoundRecord] = []

    def listen(event: Event) -> None:
        if isinstance(event, RoundFinished):
            found.append(event.record)

    Loop(strategy, transport, WORKERS, Untested(), [listen]).run()
    return tuple(found)


@pytest.fixture(scope="module")
def growing(tmp_path_factory: pytest.TempPathFactory) -> tuple[RoundRecord, ...]:
    return rounds(tmp_path_factory.mktemp("growing"), grow=True)


@pytest.fixture(scope="module")
def pruning_only(tmp_path_factory: pytest.TempPathFactory) -> tuple[RoundRecord, ...]:
    return rounds(tmp_path_factory.mktemp("pruning"), grow=False)


def unequal(record: RoundRecord) -> float:
    """The heterogeneity of a round in which every worker has a time."""
    assert record.heterogeneity is not None
    return record.heterogeneity


def settled(run: tuple[RoundRecord, ...], change: float) -> RoundRecord:
    """The record four pruning intervals after the first whole round under a new condition."""
    first = next(i for i, record in enumerate(run) if record.virtual_time_s > change) + 1
    return run[first + 4 * INTERVAL]


@pytest.mark.parametrize("change", [FALLS, RECOVERS])
def test_heterogeneity_is_low_again_four_pruning_intervals_after_a_change(
    growing: tuple[RoundRecord, ...], change: float
) -> None:
    before = [unequal(r) for r in growing if r.virtual_time_s <= change]
    assert before[-1] < 0.05
    assert max(unequal(r) for r in growing if r.virtual_time_s > change) > 0.05
    assert unequal(settled(growing, change)) < 0.05


def test_the_sub_model_shrinks_and_grows_back_to_the_size_it_had(
    growing: tuple[RoundRecord, ...],
) -> None:
    retention = [record.workers[4].retention for record in growing]
    at_the_fall = next(i for i, r in enumerate(growing) if r.virtual_time_s > FALLS)
    assert min(retention) < 0.6 * retention[at_the_fall]
    assert retention[-1] == pytest.approx(retention[at_the_fall], rel=0.1)


def test_it_does_not_oscillate(growing: tuple[RoundRecord, ...]) -> None:
    """Each worker's size turns round at most twice: once for each change."""
    for worker in range(WORKERS):
        sizes = [record.workers[worker].retention for record in growing]
        steps = [b - a for a, b in pairwise(sizes) if abs(b - a) > 1e-9]
        turns = sum(1 for a, b in pairwise(steps) if a * b < 0)
        assert turns <= 2, f"worker {worker}: {sizes}"


def test_pruning_alone_makes_everybody_pay_for_one_worker_that_recovered(
    growing: tuple[RoundRecord, ...], pruning_only: tuple[RoundRecord, ...]
) -> None:
    def mean_retention(record: RoundRecord) -> float:
        return sum(worker.retention for worker in record.workers) / len(record.workers)

    assert growing[-1].workers[9].retention == 1.0
    assert pruning_only[-1].workers[9].retention < 0.7
    assert mean_retention(pruning_only[-1]) < 0.7 * mean_retention(growing[-1])
