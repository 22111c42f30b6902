from __future__ import annotations

import math
from itertools import pairwise

import pytest

from adaptcl.report.comparisons.intervals import interval, t_quantile


def below(quantile: float, degrees: int) -> float:
    """The share of the t distribution below a value, by summing its density."""
    scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2))
    scale /= math.sqrt(degrees * math.pi)
    steps = 5_000
    width = quantile / steps
    middles = ((step + 0.5) * width for step in range(steps))
    power = -(degrees + 1) / 2
    return 0.5 + width * sum(scale * math.pow(1 + x * x / degrees, power) for x in middles)


def test_the_quantile_leaves_a_fortieth_above_it() -> None:
    for degrees in (*range(1, 13), 30, 100):
        assert below(t_quantile(degrees), degrees) == pytest.approx(0.975, abs=2e-5)


def test_more_seeds_make_it_smaller() -> None:
    quantiles = [t_quantile(degrees) for degrees in range(1, 200)]
    assert all(more < fewer for fewer, more in pairwise(quantiles))


def test_three_seeds_that_disagree_say_little() -> None:
    found = interval([-2.16, 2.30, 0.0])
    assert found is not None
    assert found == pytest.approx((-5.49, 5.59), abs=0.02)


def test_equal_values_leave_no_doubt_and_one_says_nothing() -> None:
    assert interval([0.5, 0.5]) == (0.5, 0.5)
    assert interval([0.5]) is None
    assert interval([]) is None
