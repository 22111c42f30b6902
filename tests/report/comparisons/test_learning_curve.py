from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptcl.records import RoundRecord
from adaptcl.report.comparisons.learning_curve import LearningCurve, learning_curve


def curve_of(times: list[float], accuracies: list[float | None]) -> LearningCurve:
    return learning_curve(
        [
            RoundRecord(number, time, accuracy, 0.5, ())
            for number, (time, accuracy) in enumerate(zip(times, accuracies, strict=True), start=1)
        ]
    )


def test_a_curve_is_made_of_means_of_five_tests_in_the_middle_of_their_times() -> None:
    curve = curve_of([10, 20, 30, 40, 50, 60], [0.1, 0.2, 0.3, 0.4, 0.5, 0.9])
    assert curve.times_s == pytest.approx((10, 15, 20, 25, 30, 40))
    assert curve.values == pytest.approx((0.1, 0.15, 0.2, 0.25, 0.3, 0.46))
    assert curve.last == pytest.approx(0.46)


def test_rounds_without_a_test_and_diverged_models_do_not_count() -> None:
    curve = curve_of([10, 20, 30, 40], [0.1, None, math.nan, 0.3])
    assert (curve.times_s, curve.end_s) == ((10, 25), 40)


@pytest.mark.parametrize(
    ("time", "expected"),
    [(9.9, None), (10, 0.1), (12.5, 0.125), (25, 0.25), (40, 0.25), (41, None)],
)
def test_a_run_has_an_accuracy_from_its_first_test_to_its_end(
    time: float, expected: float | None
) -> None:
    curve = curve_of([10, 20, 30, 40], [0.1, 0.2, 0.3, 0.4])
    assert curve.at(time) == (None if expected is None else pytest.approx(expected))


def test_a_run_lasts_until_a_time_that_reads_as_its_end() -> None:
    assert curve_of([3, 6.09], [0.2, 0.4]).at(6.1) == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("accuracy", "expected"), [(0.05, 10), (0.125, 12.5), (0.25, 25), (0.26, None)]
)
def test_the_time_to_an_accuracy_lies_between_the_tests(
    accuracy: float, expected: float | None
) -> None:
    curve = curve_of([10, 20, 30, 40], [0.1, 0.2, 0.3, 0.4])
    assert curve.time_to(accuracy) == (None if expected is None else pytest.approx(expected))


def test_one_lucky_test_reaches_nothing() -> None:
    lucky = [0.5, 0.5, 0.5, 0.5, 0.9, 0.5, 0.5]
    assert curve_of([1, 2, 3, 4, 5, 6, 7], list(lucky)).time_to(0.6) is None


def test_without_a_test_nothing_is_known() -> None:
    curve = curve_of([10], [None])
    assert (curve.at(10), curve.time_to(0.1), curve.last) == (None, None, None)


@given(st.floats(1, 100), st.floats(1, 100), st.floats(1e-4, 1e-2))
def test_methods_that_learn_equally_fast_are_equal_however_long_their_rounds_are(
    one_s: float, other_s: float, rate: float
) -> None:
    curves = [
        curve_of([step * n for n in range(1, 31)], [rate * step * n for n in range(1, 31)])
        for step in (one_s, other_s)
    ]
    begin, end = max(one_s, other_s), 28 * min(one_s, other_s)
    if begin < end:
        middle = (begin + end) / 2
        assert curves[0].at(middle) == pytest.approx(curves[1].at(middle))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_a_run_reaches_what_it_ends_with(accuracies: list[float]) -> None:
    curve = curve_of(list(range(1, len(accuracies) + 1)), list(accuracies))
    assert curve.last is not None
    reached = curve.time_to(curve.last)
    assert reached is not None
    assert reached <= curve.times_s[-1] + 1e-9
