"""Workers whose update time does not follow the size of their sub-model (`rates.follows_size`)."""

from __future__ import annotations

import pytest

from adaptcl.strategies.adaptcl.pruned_rate import Point, RateSettings, follows_size, pruned_rate


def test_a_worker_that_a_smaller_sub_model_has_not_made_faster_prunes_no_more() -> None:
    assert pruned_rate([Point(1.0, 40.0)], 20.0, RateSettings()) == 0.25
    assert pruned_rate([Point(1.0, 40.0), Point(0.75, 40.0)], 20.0, RateSettings()) == 0
    assert pruned_rate([Point(1.0, 40.0), Point(0.75, 39.9)], 20.0, RateSettings()) == 0


@pytest.mark.parametrize(("time", "follows"), [(95.1, True), (97.6, False), (100.0, False)])
def test_a_twentieth_of_the_time_is_enough_to_follow_the_size(time: float, follows: bool) -> None:
    assert follows_size([Point(1.0, 100.0), Point(0.5, time)]) == follows


def test_one_size_says_nothing_and_two_that_are_close_do_not_either() -> None:
    assert follows_size([Point(1.0, 40.0)])
    assert follows_size([Point(1.0, 40.0), Point(0.85, 40.0)])


def test_parameters_that_cost_no_computing_say_nothing_of_a_worker_that_computes() -> None:
    whole = Point(1.0, 40.0)
    assert follows_size([whole, Point(0.5, 39.5, flops=0.97)])
    assert not follows_size([whole, Point(0.5, 39.5, flops=0.6)])


def test_a_time_that_rises_is_a_change_of_conditions() -> None:
    assert follows_size([Point(1.0, 40.0), Point(0.7, 42.0)])


def test_noise_that_may_hide_a_slope_leaves_it_open() -> None:
    for error, follows in ((0.2, False), (2.0, True)):
        history = [Point(1.0, 40.0, error), Point(0.5, 40.0, error)]
        assert follows_size(history) == follows


def test_the_newest_size_that_tells_decides() -> None:
    # Half the size was half the time, and less than that is not faster any more.
    assert not follows_size([Point(1.0, 80.0), Point(0.5, 40.0), Point(0.35, 40.0)])
    assert follows_size([Point(1.0, 40.0), Point(0.6, 44.0), Point(0.4, 40.0)])
    # Of the newer two noise lets nothing be told; the whole model is far enough away.
    unsure = [Point(1.0, 40.0, 0.8), Point(0.4, 40.0, 0.8), Point(0.3, 40.0, 0.8)]
    assert follows_size(unsure[1:])
    assert not follows_size(unsure)
