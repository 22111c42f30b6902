from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptcl.strategies.adaptcl.pruned_rate import divided_differences, interpolate


@st.composite
def points(draw: st.DrawFn) -> tuple[list[float], list[float]]:
    """Up to five points whose xs are well apart, in any order."""
    xs = draw(st.lists(st.integers(1, 40), min_size=1, max_size=5, unique=True))
    ys = draw(st.lists(st.floats(-10, 10), min_size=len(xs), max_size=len(xs)))
    return [x / 4 for x in xs], ys


def test_the_formula_of_the_paper_worked_out_by_hand() -> None:
    # γ over φ: f[90] = 1, f[90,70] = (0.7 − 1)/(70 − 90) = 0.015,
    # f[70,50] = (0.5 − 0.7)/(50 − 70) = 0.01, f[90,70,50] = (0.01 − 0.015)/(50 − 90) = 0.000125;
    # at 45: 1 + 0.015·(45 − 90) + 0.000125·(45 − 90)·(45 − 70) = 1 − 0.675 + 0.140625.
    times, retentions = [90.0, 70.0, 50.0], [1.0, 0.7, 0.5]
    assert divided_differences(times, retentions) == pytest.approx([1, 0.015, 0.000125])
    assert interpolate(times, retentions, 45) == pytest.approx(0.465625)


@given(points())
def test_the_polynomial_goes_through_every_point(given_points: tuple[list[float], ...]) -> None:
    xs, ys = given_points
    for x, y in zip(xs, ys, strict=True):
        assert interpolate(xs, ys, x) == pytest.approx(y, abs=1e-6)


@given(points(), st.lists(st.integers(-5, 5), min_size=1, max_size=5), st.floats(-2, 12))
def test_a_polynomial_is_found_exactly_from_enough_points(
    given_points: tuple[list[float], ...], coefficients: list[int], at: float
) -> None:
    xs = given_points[0]
    polynomial = np.polynomial.Polynomial(coefficients[: len(xs)])
    ys = [float(polynomial(x)) for x in xs]
    expected = float(polynomial(at))
    scale = 1 + max(map(abs, [*ys, expected]))
    # Points far from `at` and close together magnify the rounding errors of the values.
    spread = (1 + max(abs(at - x) for x in xs) / 0.25) ** (len(xs) - 1)
    assert interpolate(xs, ys, at) == pytest.approx(expected, abs=1e-14 * scale * spread)


@given(points(), st.floats(0, 11))
def test_it_equals_lagrange_interpolation(given_points: tuple[list[float], ...], at: float) -> None:
    xs, ys = given_points
    bases = [
        np.prod([(at - other) / (x - other) for j, other in enumerate(xs) if j != i])
        for i, x in enumerate(xs)
    ]
    lagrange = float(np.dot(bases, ys))
    scale = 1 + float(np.abs(bases).sum()) * max(map(abs, ys), default=0)
    assert interpolate(xs, ys, at) == pytest.approx(lagrange, abs=1e-9 * scale)


@given(points(), st.randoms(use_true_random=False), st.floats(0, 11))
def test_the_order_of_the_points_does_not_matter(
    given_points: tuple[list[float], ...], dice: Random, at: float
) -> None:
    pairs = list(zip(*given_points, strict=True))
    shuffled = pairs.copy()
    dice.shuffle(shuffled)
    one, other = (
        interpolate([x for x, _ in each], [y for _, y in each], at) for each in (pairs, shuffled)
    )
    assert one == pytest.approx(other, rel=1e-6, abs=1e-3)


def test_one_point_is_a_constant() -> None:
    assert interpolate([3.0], [0.5], 100.0) == 0.5
