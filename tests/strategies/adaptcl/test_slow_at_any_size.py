"""A worker that waits for something else than its sub-model is not pruned for it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.strategies.adaptcl.conftest import Engine, Engines, Lines


def told(run: Engine) -> list[str]:
    return [text for c in run.closed for text in c.warnings if "does not depend" in text]


@pytest.mark.parametrize("share", [0.0, 0.01])
def test_a_worker_that_is_slow_at_any_size_is_pruned_once_and_told_of_once(
    engine: Engines, tmp_path: Path, share: float
) -> None:
    def times(worker: int, kept: float, round: int) -> float:
        return 20 * (1 - share + share * kept) if worker == 1 else 10.0

    run = engine(times, width_multiple=1).until(12).resumed(tmp_path).until(40)
    assert run.rates() == {3: [0, pytest.approx(0.25), 0]}
    (text,) = told(run)
    assert "The update time of worker 1 does not depend on the size of its sub-model" in text


def test_when_its_time_follows_the_size_again_it_is_pruned_until_all_are_equal(
    engine: Engines, line: Lines
) -> None:
    later = line(90, 20, 20)

    def times(worker: int, kept: float, round: int) -> float:
        return 60.0 if worker == 0 and round < 15 else later(worker, kept, round)

    run = engine(times, width_multiple=1).until(15)
    assert list(run.rates()) == [3]
    assert len(told(run)) == 1
    run.until(45)
    assert run.spread()[-1] < 0.03


@pytest.mark.parametrize("seed", [0, 2])
def test_on_a_noisy_clock_it_keeps_much_of_its_model_too(engine: Engines, seed: int) -> None:
    draw = random.Random(seed)

    def times(worker: int, kept: float, round: int) -> float:
        return (40.0 if worker == 0 else 10 + 10 * kept) * (1 + draw.uniform(-0.03, 0.03))

    run = engine(times, width_multiple=1, pruning_interval=8, time_noise=0.1).until(90)
    assert run.retentions()[0] > 0.25
    assert len(told(run)) == 1


def test_who_is_as_fast_as_the_others_is_not_spoken_of(engine: Engines, line: Lines) -> None:
    assert not told(engine(line(60, 40, 20)).until(40))
