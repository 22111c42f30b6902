"""Points of a worker's measured speed: which of them differ, and the lines through two."""

from __future__ import annotations

import pytest

from adaptcl.strategies.adaptcl.points import (
    Point,
    differ,
    distinct_points,
    on_line,
    point_before,
    points_apart,
)


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
