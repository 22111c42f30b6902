"""The update time that all workers should reach, and how certain it is."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptcl.strategies.adaptcl.guards import GuardSettings, fastest_time, guarded_pruned_rate
from adaptcl.strategies.adaptcl.speed_history import Point

GROWING = GuardSettings(grow=True)
points = st.builds(Point, st.floats(0.01, 1) | st.just(1.0), st.floats(0.1, 1000))
histories = st.lists(points, min_size=1, max_size=6)


def target(histories: list[list[Point]], grow: bool) -> float:
    return fastest_time(histories, grow).update_time


def test_the_target_is_the_shortest_time_of_now() -> None:
    histories = [[Point(1.0, 10.0), Point(0.5, 60.0)], [Point(1.0, 55.0), Point(1.0, 50.0)]]
    assert target(histories, grow=False) == 50


def test_a_pruned_worker_that_overshot_does_not_set_the_pace() -> None:
    histories = [[Point(1.0, 90.0), Point(0.5, 48.0)], [Point(1.0, 50.0)]]
    assert target(histories, grow=False) == 50


def test_of_the_whole_model_the_newest_measurement_counts() -> None:
    histories = [[Point(1.0, 90.0), Point(1.0, 70.0), Point(0.5, 48.0)], [Point(1.0, 80.0)]]
    assert target(histories, grow=False) == 70


def test_a_whole_model_that_was_measured_counts_as_measured_however_the_curve_bends() -> None:
    # The line through the last two sizes would have it take 62.5 s.
    bent = [Point(1.0, 30.0), Point(0.5, 25.0), Point(0.3, 10.0)]
    assert target([bent], grow=False) == target([bent], grow=True) == 30


def test_the_target_is_as_uncertain_as_whoever_sets_it() -> None:
    fast = [Point(1.0, 50.0, error=4.0)]
    measured = [Point(1.0, 60.0, error=3.0), Point(0.5, 40.0, error=1.0)]
    # Twice as far as the points are apart: three times the newer time, less twice the older.
    line = [Point(0.6, 38.0, error=1.0), Point(0.4, 30.0, error=2.0)]
    for histories, grow, time, error in (
        ([fast, measured], False, 50.0, 4.0),
        ([measured], False, 60.0, 3.0),
        ([line], False, 54.0, math.hypot(3 * 1.0, 2 * 2.0)),
        ([[Point(0.5, 30.0, 2.0)]], True, 60.0, 4.0),  # in proportion, as the time
    ):
        found = fastest_time(histories, grow)
        assert (found.update_time, found.error) == pytest.approx((time, error))


def test_a_pruned_worker_that_has_become_faster_sets_the_pace_unless_it_may_grow() -> None:
    histories = [[Point(0.4, 30.0)], [Point(1.0, 50.0)]]
    assert target(histories, grow=False) == 30
    assert target(histories, grow=True) == 50


@pytest.mark.parametrize("grow", [False, True])
def test_the_time_of_a_whole_model_that_is_not_measured_is_read_off_the_last_line(
    grow: bool,
) -> None:
    # 0.4 → 30 s and 0.6 → 38 s is a line that reaches 54 s at γ = 1.
    assert target([[Point(0.6, 38.0), Point(0.4, 30.0)]], grow) == pytest.approx(54)


def test_with_growth_and_one_point_time_is_taken_for_proportional() -> None:
    assert target([[Point(0.5, 30.0)]], grow=True) == 60


@given(st.lists(histories, min_size=1, max_size=4), st.booleans())
def test_every_set_of_histories_gives_a_target(drawn: list[list[Point]], grow: bool) -> None:
    assert target(drawn, grow) > 0


def test_when_the_slowest_becomes_fast_it_grows_back_and_sets_no_pace() -> None:
    fast, slow = Point(1.0, 50.0), [Point(1.0, 90.0), Point(0.4, 50.0)]
    recovered = [Point(0.4, 30.0)]
    pace = target([[fast], recovered], grow=True)
    assert pace == 50
    assert guarded_pruned_rate([fast], pace, GROWING) == 0
    assert guarded_pruned_rate(recovered, pace, GROWING) < 0
    assert guarded_pruned_rate(slow, pace, GROWING) == 0


def test_points_that_make_no_curve_set_no_pace() -> None:
    # The first is the mean over an interval in which the worker recovered: it fits no line.
    muddled = [Point(0.33, 26.7), Point(0.42, 22.5)]
    assert target([muddled, [Point(1.0, 40.0)]], grow=True) == 40
    assert target([muddled, [Point(1.0, 40.0)]], grow=False) == 40


def test_a_line_that_noise_can_have_made_sets_no_pace() -> None:
    # A link recovered in the middle of the first size's two rounds; its mean belongs to neither.
    recovered = [Point(0.262, 18.54, 3.54), Point(0.341, 18.74)]
    pace = target([recovered, [Point(1.0, 30.15)]], grow=True)
    assert pace == 30.15
    assert guarded_pruned_rate(recovered, pace, GROWING) < -0.2
