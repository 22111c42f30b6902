"""How unequal workers are: the paper's H."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptcl.engines.bandwidths import update_times
from adaptcl.engines.heterogeneity import heterogeneity

TIMES = st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=20)


@pytest.mark.parametrize(("sigma", "expected"), [(2, 0.334), (5, 0.638), (10, 0.786), (20, 0.880)])
def test_heterogeneity_of_the_papers_settings(sigma: int, expected: float) -> None:
    assert heterogeneity(update_times(47.0, sigma, 10)) == pytest.approx(expected, abs=5e-4)


@given(TIMES)
def test_heterogeneity_lies_between_0_and_1(times: list[float]) -> None:
    assert 0 <= heterogeneity(times) < 1


@given(TIMES, st.floats(0.01, 100))
def test_heterogeneity_does_not_depend_on_the_unit_of_time(times: list[float], unit: float) -> None:
    scaled = [unit * t for t in times]
    assert heterogeneity(scaled) == pytest.approx(heterogeneity(times), abs=1e-9)


@given(st.permutations([1.0, 2.0, 3.0, 4.0]))
def test_heterogeneity_does_not_depend_on_the_order_of_workers(times: list[float]) -> None:
    assert heterogeneity(times) == pytest.approx(1 - (1 / 2 + 1 / 3 + 1 / 4) / 3)


def test_equal_workers_and_a_single_worker_are_not_heterogeneous() -> None:
    assert heterogeneity([3.0, 3.0, 3.0]) == 0
    assert heterogeneity([3.0]) == 0
    assert heterogeneity([]) == 0


def test_times_that_say_nothing_are_left_out() -> None:
    assert heterogeneity([2.0, 4.0, 0.0, math.nan, math.inf]) == 0.5
