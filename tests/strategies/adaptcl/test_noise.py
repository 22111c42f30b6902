"""Update times on a real network: the same work takes now longer and now less."""

from __future__ import annotations

import random
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.strategies.adaptcl.conftest import Engines, Times

ROUNDS, WORKERS = 150, 8
NOISE = 0.3
"""Times are up to this much longer or shorter."""


def noisy(slowness: float, seed: int, noise: float = NOISE) -> Times:
    """Four workers, the first of which is this many times as slow as the others."""
    draw = random.Random(seed)

    def times(worker: int, kept: float, round: int) -> float:
        seconds = (10 + 30 * kept) * (slowness if worker == 0 else 1)
        return seconds * (1 + noise * draw.uniform(-1, 1))

    return times


@pytest.mark.slow
def test_equal_workers_are_hardly_ever_pruned_for_what_is_noise(engine: Engines) -> None:
    # Among so many means one is off by three of its errors now and then: four times make it small.
    runs = [
        engine(noisy(1.0, seed), workers=4, pruning_interval=5, width_multiple=1).until(60)
        for seed in range(8)
    ]
    kept = [run.retentions() for run in runs]
    assert fmean(map(fmean, kept)) > 0.93
    assert min(map(fmean, kept)) > 0.85
    assert sum(max(each) < 0.95 for each in kept) <= 1


def test_nor_for_a_single_round_where_the_clock_is_known_to_be_noisy(engine: Engines) -> None:
    runs = [
        engine(
            noisy(1.0, seed, 0.17), workers=4, first_pruning=2, width_multiple=1, time_noise=0.1
        ).until(8)
        for seed in range(12)
    ]
    kept = [run.retentions() for run in runs]
    assert fmean(map(fmean, kept)) > 0.97
    assert min(map(min, kept)) > 0.8


def test_a_slow_worker_is_pruned_after_a_single_round_all_the_same(engine: Engines) -> None:
    run = engine(
        noisy(2.0, 1, 0.1), workers=4, first_pruning=2, width_multiple=1, time_noise=0.1
    ).until(8)
    assert 2 in run.rates()
    assert run.retentions()[0] < 0.5


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "grow"), [(0, False), (1, False), (2, True), (3, True)])
def test_noise_is_not_taken_for_a_change_of_conditions(
    engine: Engines, seed: int, grow: bool
) -> None:
    # One worker has to prune, so there are curves that noise could seem to contradict.
    run = engine(
        noisy(2.0, seed, 0.1), workers=4, pruning_interval=5, width_multiple=1, grow=grow
    ).until(60)
    assert run.retentions()[0] == pytest.approx(1 / 3, abs=0.15)
    assert fmean(run.retentions()[1:]) > 0.93


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_slow_worker_is_pruned_all_the_same(engine: Engines, seed: int) -> None:
    run = engine(noisy(2.0, seed), workers=4, pruning_interval=5, width_multiple=1).until(60)
    assert run.retentions()[0] < 0.5
    assert fmean(run.retentions()[1:]) > 0.85


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_equal_workers_that_are_restarted_again_and_again_keep_nearly_the_whole_model(
    engine: Engines, seed: int
) -> None:
    # Eight equal workers that were killed at random once ended at retentions down to 0.10.
    draw, restarting = random.Random(seed), set[int]()

    def times(worker: int, kept: float, _: int) -> float:
        seconds = (10 + 30 * kept) * draw.lognormvariate(0, 0.1)
        if draw.random() < 0.03:  # another program took the processor
            seconds *= draw.uniform(1.5, 3)
        if worker in restarting:
            restarting.discard(worker)
            seconds *= draw.uniform(2, 5)
        return seconds

    common = {"workers": WORKERS, "pruning_interval": 5, "rounds": ROUNDS, "time_noise": 0.1}
    run = engine(times, grow=True, **common)
    sizes = []
    while not run.strategy.finished:
        worker = draw.randrange(WORKERS)
        if draw.random() < 0.4 and worker in run.open:
            restarting.add(worker)
            run.restarted.add(worker)
            if draw.random() < 0.5 and len(run.open) > 1:  # away long enough to count as lost
                run.lose(worker)
                run.join(worker)
        run.until(run.strategy.round + 1)
        sizes.append(run.retentions())
    assert min(sizes[-1]) > 0.8
    assert fmean(map(fmean, sizes)) > 0.95
    # A sub-model that shrank by chance grows back once, and does not go up and down.
    assert sum(a != b for a, b in pairwise(sizes)) <= ROUNDS / 10


def test_a_slow_worker_stays_small_while_equal_ones_grow_back(engine: Engines) -> None:
    draw = random.Random(3)

    def times(worker: int, kept: float, round: int) -> float:
        slowness = 3.0 if worker == 0 or (worker == 1 and round < 10) else 1.0
        return (10 + 30 * kept) * slowness * draw.lognormvariate(0, 0.05)

    run = engine(times, workers=4, grow=True, time_noise=0.1, width_multiple=1).until(12)
    assert max(run.retentions()[:2]) < 0.7
    run.until(60)
    assert run.retentions()[0] < 0.3
    assert min(run.retentions()[1:]) > 0.9


def test_a_strategy_that_is_restored_knows_how_noisy_times_were(
    engine: Engines, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # So few times that a new beginning would not have made up for what it has forgotten.
    own = {"workers": 2, "pruning_interval": 2, "width_multiple": 1, "time_noise": 0.1}
    runs = [engine(noisy(1.2, 1, 0.02), **own).until(22) for _ in range(2)]
    runs[1] = runs[1].resumed(tmp_path_factory.mktemp("noise"))
    assert runs[0].until(24).closed == runs[1].until(24).closed
    assert (
        runs[0].strategy.snapshot()["_speeds"]["points"]
        == runs[1].strategy.snapshot()["_speeds"]["points"]
    )
