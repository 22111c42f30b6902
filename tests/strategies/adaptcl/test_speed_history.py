"""What the server remembers of a worker's times, when it forgets, and how it learns their noise."""

from __future__ import annotations

import math
import random
from statistics import stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptcl.strategies.adaptcl.speed_history import (
    Point,
    SpeedHistory,
    TimeNoise,
    differ,
    distinct_points,
    on_line,
    point_before,
    points_apart,
    remember_every_size,
    remember_same_conditions,
)
from adaptcl.training.update_time import TYPICAL_NOISE

retentions = st.lists(st.floats(0.05, 1), min_size=1, max_size=8)
some_points = st.builds(Point, st.floats(0.01, 1), st.floats(0.1, 1000))


def history(*points: Point) -> list[Point]:
    known: list[Point] = []
    for point in points:
        known = remember_same_conditions(known, point)
    return known


WHOLE, SMALLER = Point(1.0, 80.0), Point(0.8, 70.0)


@given(retentions, st.floats(0, 100), st.floats(0.1, 100))
def test_under_steady_conditions_every_size_is_remembered(
    sizes: list[float], constant: float, proportional: float
) -> None:
    points = [Point(kept, constant + proportional * kept) for kept in sizes]
    assert {p.retention for p in history(*points)} == set(sizes)


def test_of_one_size_the_newest_time_is_remembered() -> None:
    assert history(WHOLE, SMALLER, Point(0.8, 71.0)) == [WHOLE, Point(0.8, 71.0)]
    assert history(WHOLE, SMALLER, Point(1.0, 81.0)) == [SMALLER, Point(1.0, 81.0)]


@pytest.mark.parametrize("time", [60.0, 80.0])
def test_another_time_at_the_same_size_means_that_conditions_have_changed(time: float) -> None:
    assert history(WHOLE, SMALLER, Point(0.8, time)) == [Point(0.8, time)]


@pytest.mark.parametrize(("time", "changed"), [(35.0, True), (37.0, False), (87.0, False)])
def test_half_the_size_takes_half_the_time_at_least(time: float, changed: bool) -> None:
    assert (len(history(WHOLE, Point(0.5, time))) == 1) == changed


def test_and_no_longer_than_the_whole() -> None:
    assert history(WHOLE, Point(0.5, 90.0)) == [Point(0.5, 90.0)]


@pytest.mark.parametrize(("time", "changed"), [(35.0, False), (43.0, False), (44.5, True)])
def test_who_grows_takes_at_most_in_proportion_longer(time: float, changed: bool) -> None:
    small = Point(0.5, 20.0)
    assert (len(history(small, Point(1.0, time))) == 1) == changed


def test_less_than_in_proportion_is_believed_where_the_last_two_sizes_say_so() -> None:
    # From 1 to 0.8 the time has fallen by 27 %; 0.6 is expected to take 36 s, and not 43.5.
    steep = (Point(1.0, 80.0), Point(0.8, 58.0))
    assert len(history(*steep, Point(0.6, 36.0))) == 3
    assert len(history(WHOLE, Point(0.8, 64.0), Point(0.6, 36.0))) == 1


def test_a_slow_drift_is_noticed_when_it_no_longer_fits_the_other_sizes() -> None:
    known = history(WHOLE, Point(0.9, 72.0))
    for time in (68.0, 66.0, 65.0):
        known = remember_same_conditions(known, Point(0.9, time))
    assert known[0] == WHOLE
    assert remember_same_conditions(known, Point(0.9, 64.0)) == [Point(0.9, 64.0)]


def test_what_noise_explains_is_no_change() -> None:
    noisy = Point(1.0, 80.0, error=4.0)
    assert len(history(noisy, Point(0.5, 30.0, error=1.0))) == 2
    assert len(history(Point(1.0, 80.0), Point(0.5, 30.0))) == 1


@given(st.lists(some_points, min_size=1, max_size=6))
def test_every_sequence_of_measurements_ends_with_the_newest(points: list[Point]) -> None:
    known = history(*points)
    assert known[-1] is points[-1]
    assert sum(p.retention == points[-1].retention for p in known) == 1


def test_less_than_in_proportion_to_parameters_is_believed_where_flops_fell_as_much() -> None:
    cut = Point(0.6, 43.0, flops=0.41)
    assert history(Point(1.0, 100.0), cut) == [Point(1.0, 100.0), cut]
    assert history(Point(1.0, 100.0), Point(0.6, 43.0, flops=0.6)) == [Point(0.6, 43.0, flops=0.6)]
    assert len(history(Point(0.6, 43.0, flops=0.41), Point(1.0, 100.0))) == 2


@given(
    st.lists(st.tuples(st.floats(0.05, 1), st.floats(0.05, 1)), min_size=1, max_size=8),
    st.tuples(st.floats(0.1, 100), st.floats(0, 100), st.floats(0, 100)),
)
def test_of_what_travels_and_what_is_computed_any_mixture_is_a_steady_condition(
    sizes: list[tuple[float, float]], mixture: tuple[float, float, float]
) -> None:
    constant, travels, computed = mixture
    shrinking = zip(*(sorted(each, reverse=True) for each in zip(*sizes, strict=True)), strict=True)
    points = [
        Point(kept, constant + travels * kept + computed * flops, flops=flops)
        for kept, flops in shrinking
    ]
    assert {p.retention for p in history(*points)} == {p.retention for p in points}


def test_as_printed_every_size_is_remembered_whatever_its_time() -> None:
    known = remember_every_size([WHOLE, SMALLER], Point(0.5, 900.0))
    assert known == [WHOLE, SMALLER, Point(0.5, 900.0)]
    assert remember_every_size(known, Point(0.8, 3.0))[1:] == [Point(0.5, 900.0), Point(0.8, 3.0)]


# Noise ------------------------------------------------------------------------------------------

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
    exact = TimeNoise(0.0)
    exact.learn(repeated(0.5, 4, 10))
    expected = stdev(times) / math.sqrt(len(times)) if len(times) > 1 else 0.0
    assert exact.error(times) == expected


def test_a_single_time_may_be_off_by_what_is_assumed() -> None:
    assert TimeNoise(TYPICAL_NOISE).error([20.0]) == pytest.approx(20 * TYPICAL_NOISE)


def test_the_more_times_the_more_their_own_spread_counts() -> None:
    noise = TimeNoise(0.1)
    assert noise.error([10.0, 10.0]) == pytest.approx(0.9 / math.sqrt(2), rel=0.02)
    many = [8.0, 12.0] * 200
    assert noise.error(many) == pytest.approx(stdev(many) / math.sqrt(400), rel=0.02)


@pytest.mark.parametrize("spread", [0.02, 0.3])
def test_what_is_typical_is_learned_from_repeated_times(spread: float) -> None:
    noise = TimeNoise(TYPICAL_NOISE)
    noise.learn(repeated(spread, 10, 9))
    assert noise.error([10.0]) == pytest.approx(10 * spread, rel=0.25)


def test_a_worker_that_has_changed_does_not_speak_for_all() -> None:
    noise = TimeNoise(TYPICAL_NOISE)
    noise.learn([[10.0, 10.0, 90.0, 90.0], *repeated(0.02, 9, 4)])
    assert noise.error([10.0]) < 0.4


def test_few_pairs_of_times_are_kept_until_there_are_enough() -> None:
    noise = TimeNoise(TYPICAL_NOISE)
    for _ in range(3):
        noise.learn([[10.0, 10.1], [20.0, 20.2]])
        assert noise.error([10.0]) == pytest.approx(1.0)
    noise.learn([[10.0, 10.1], [20.0, 20.2]])
    assert noise.error([10.0]) == pytest.approx(10 * math.log(1.01) / (0.6745 * math.sqrt(2)))


def test_times_that_cannot_be_are_not_learned_from() -> None:
    speeds = SpeedHistory(2, TYPICAL_NOISE, remember_same_conditions)
    for seconds in (0.0, math.nan, math.inf, 10.0, -3.0):
        speeds.add(0, seconds)
    speeds.average_times(lambda worker: (1.0, 1.0))
    assert speeds.points == [[Point(1.0, 10.0, error=10 * TYPICAL_NOISE)], []]


def test_a_snapshot_holds_what_was_learned() -> None:
    noise, other = TimeNoise(0.1), TimeNoise(0.1)
    noise.learn(repeated(0.3, 4, 4))
    noise.learn([[10.0, 11.0]])
    other.restore(noise.snapshot())
    for each in (noise, other):
        each.learn(repeated(0.05, 3, 4))
    assert noise.error([1.0]) == other.error([1.0])


# Points and lines --------------------------------------------------------------------------------


def test_times_differ_if_their_errors_do_not_explain_it() -> None:
    assert differ(Point(1.0, 10.0), Point(1.0, 10.001))
    assert not differ(Point(1.0, 10.0), Point(1.0, 10.0))
    assert not differ(Point(1.0, 10.0, error=3.0), Point(1.0, 24.0, error=4.0))
    assert differ(Point(1.0, 10.0, error=3.0), Point(1.0, 26.0, error=4.0))


def test_of_points_without_a_slope_between_them_the_newest_counts() -> None:
    history = [Point(1.0, 30.0), Point(0.5, 20.0), Point(0.4, 20.0), Point(0.4, 15.0)]
    assert distinct_points(history) == [history[0], history[1], history[3]]


def test_points_that_noise_can_have_made_different_are_not_apart() -> None:
    far, near, now = Point(1.0, 30.0, 1.0), Point(0.5, 17.0, 1.0), Point(0.4, 15.0, 1.0)
    assert points_apart([far, near, now]) == [far, now]


def test_a_line_counts_only_if_it_rises() -> None:
    now = Point(0.5, 20.0)
    assert point_before([Point(1.0, 30.0), now]) == Point(1.0, 30.0)
    assert point_before([Point(1.0, 10.0), now]) is None
    assert point_before([now]) is None


def test_a_time_far_from_two_points_is_less_sure_than_either() -> None:
    first, second = Point(1.0, 30.0, 0.3), Point(0.5, 20.0, 0.4)
    assert on_line(first, second, 0.0).update_time == pytest.approx(10.0)
    assert on_line(first, second, 0.0).error == pytest.approx((0.8**2 + 0.3**2) ** 0.5)
    assert on_line(first, second, 1.0).error == pytest.approx(0.3)
