"""Newton's interpolation by divided differences, the tool of pruned-rate learning."""

from __future__ import annotations

from collections.abc import Sequence


def divided_differences(xs: Sequence[float], ys: Sequence[float]) -> list[float]:
    """The coefficients f[x0], f[x0,x1], … of Newton's form. The xs must be distinct."""
    column = list(ys)
    coefficients = [column[0]]
    for order in range(1, len(xs)):
        column = [
            (column[i + 1] - column[i]) / (xs[i + order] - xs[i]) for i in range(len(column) - 1)
        ]
        coefficients.append(column[0])
    return coefficients


def interpolate(xs: Sequence[float], ys: Sequence[float], at: float) -> float:
    """The value at `at` of the polynomial through all points (x, y)."""
    value = 0.0
    for x, coefficient in zip(reversed(xs), reversed(divided_differences(xs, ys)), strict=True):
        value = value * (at - x) + coefficient
    return value
