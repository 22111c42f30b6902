from __future__ import annotations

import math
import random
from statistics import stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptcl.strategies.adaptcl.guards import TYPICAL_NOISE, Noise

some_times = st.lists(st.floats(0.1, 100), min_size=1, max_size=8)


def repeated(noise: float, workers: int, rounds: int) -> list[list[float]]:
    """Times of workers that are up to three times as slow as others."""
    draw = random.Random(1)
    return [
        [(1 + worker % 3) * math.exp(noise * draw.gauss(0, 1)) for _ in range(rounds)]
        for worker in range(workers)
    ]


@given(some_times)
def test_without_noise_only_a_worker_s_own_times_say_how_sure_their_mean_is(
    times: list[float],
) -> None:
    exact = Noise(0.0)
    exact.watch(repeated(0.5, 4, 10))
    expected = stdev(times) / math.sqrt(len(times)) if len(times) > 1 else 0.0
    assert exact.error(times) == expected


def test_a_single_time_may_be_off_by_what_is_assumed() -> None:
    assert Noise(TYPICAL_NOISE).error([20.0]) == pytest.approx(20 * TYPICAL_NOISE)


def test_the_more_times_the_more_their_own_spread_counts() -> None:
    noise = Noise(0.1)
    assert noise.error([10.0, 10.0]) == pytest.approx(0.9 / math.sqrt(2), rel=0.02)
    many = [8.0, 12.0] * 200
    assert noise.error(many) == pytest.approx(stdev(many) / math.sqrt(400), rel=0.02)


@pytest.mark.parametrize("spread", [0.02, 0.3])
def test_what_is_typical_is_learned_from_repeated_times(spread: float) -> None:
    noise = Noise(TYPICAL_NOISE)
    noise.watch(repeated(spread, 10, 9))
    assert noise.error([10.0]) == pytest.approx(10 * spread, rel=0.25)


def test_a_worker_that_has_changed_does_not_speak_for_all() -> None:
    noise = Noise(TYPICAL_NOISE)
    noise.watch([[10.0, 10.0, 90.0, 90.0], *repeated(0.02, 9, 4)])
    assert noise.error([10.0]) < 0.4


def test_few_pairs_of_times_are_kept_until_there_are_enough() -> None:
    noise = Noise(TYPICAL_NOISE)
    for _ in range(3):
        noise.watch([[10.0, 10.1], [20.0, 20.2]])
        assert noise.error([10.0]) == pytest.approx(1.0)
    noise.watch([[10.0, 10.1], [20.0, 20.2]])
    assert noise.error([10.0]) == pytest.approx(10 * math.log(1.01) / (0.6745 * math.sqrt(2)))


def test_times_that_cannot_be_are_not_learned_from() -> None:
    noise = Noise(TYPICAL_NOISE)
    noise.watch([[0.0, math.nan, math.inf, 10.0]] * 20)
    assert noise.error([10.0]) == pytest.approx(1.0)


def test_a_snapshot_holds_what_was_learned() -> None:
    noise, other = Noise(0.1), Noise(0.1)
    noise.watch(repeated(0.3, 4, 4))
    noise.watch([[10.0, 11.0]])
    other.restore(noise.snapshot())
    for each in (noise, other):
        each.watch(repeated(0.05, 3, 4))
    assert noise.error([1.0]) == other.error([1.0])
