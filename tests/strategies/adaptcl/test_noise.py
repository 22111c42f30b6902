"""Update times on a real network: the same work takes now longer and now less."""

from __future__ import annotations

import random
from statistics import fmean
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.strategies.adaptcl.conftest import Engines, Times

NOISE = 0.3
"""Times are up to this much longer or shorter."""


def noisy(slowness: float, seed: int) -> Times:
    """Four workers, the first of which is this many times as slow as the others."""
    draw = random.Random(seed)

    def times(worker: int, kept: float, round: int) -> float:
        seconds = (10 + 30 * kept) * (slowness if worker == 0 else 1)
        return seconds * (1 + NOISE * draw.uniform(-1, 1))

    return times


@pytest.mark.parametrize("seed", range(6))
def test_equal_workers_are_not_pruned_for_what_is_noise(engine: Engines, seed: int) -> None:
    run = engine(noisy(1.0, seed), workers=4, pruning_interval=5, width_multiple=1).until(60)
    assert fmean(run.retentions()) > 0.85
    assert max(run.retentions()) > 0.95


@pytest.mark.parametrize("seed", range(6))
def test_a_slow_worker_is_pruned_all_the_same(engine: Engines, seed: int) -> None:
    run = engine(noisy(2.0, seed), workers=4, pruning_interval=5, width_multiple=1).until(60)
    assert run.retentions()[0] < 0.5
    assert fmean(run.retentions()[1:]) > 0.85


def test_a_strategy_that_is_restored_knows_how_noisy_times_were(
    engine: Engines, tmp_path_factory: pytest.TempPathFactory
) -> None:
    runs = [
        engine(noisy(2.0, 1), workers=4, pruning_interval=5, width_multiple=1).until(22)
        for _ in range(2)
    ]
    runs[1] = runs[1].resumed(tmp_path_factory.mktemp("noise"))
    assert runs[0].until(60).retentions() == runs[1].until(60).retentions()
