"""A worker's measured speed as points (γ, φ), and the lines through them.

Measurements are noisy, so a point knows its standard error, and two points make a line only if
noise cannot have made them differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

_ERRORS_TO_DIFFER = 3.0
"""Standard errors by which two mean times must differ to be taken for different."""

ERRORS_FOR_A_LINE = 2.0
"""Standard errors by which the times of two sizes must differ for their line to count."""

_SAME = 1e-6  # times or retentions closer than this (relative) are equal


@dataclass(frozen=True)
class Point:
    """What was measured of a worker at one size: (γ, φ), and two figures for the guards."""

    retention: float
    update_time: float
    error: float = 0.0  # standard error of the mean update time; 0 if unknown
    flops: float = 1.0  # FLOPs of the sub-model as a share of the whole model's


by_time = attrgetter("update_time")


def differ(one: Point, other: Point, errors: float = _ERRORS_TO_DIFFER) -> bool:
    """Whether two mean times differ by more than noise.

    On a real network equal workers take a little more or less time. Pruning for that would only
    make models smaller.
    """
    gap = abs(one.update_time - other.update_time)
    return gap > errors * math.hypot(one.error, other.error)


def distinct_points(history: Sequence[Point]) -> list[Point]:
    """The points, but of equal times or retentions only the newest, as they have no slope."""
    chosen: list[Point] = []
    for point in reversed(history):
        is_equal = any(
            math.isclose(point.update_time, other.update_time, rel_tol=_SAME)
            or math.isclose(point.retention, other.retention, rel_tol=_SAME)
            for other in chosen
        )
        if not is_equal:
            chosen.insert(0, point)
    return chosen


def points_apart(points: Sequence[Point]) -> list[Point]:
    """The latest point, and those before it whose times noise cannot have made different.

    Between two sizes close together, as a small correction leaves them, noise can make any slope.
    Along a flat one a worker would be cut far too much.
    """
    apart: list[Point] = []
    for point in reversed(points):
        if all(differ(each, point, ERRORS_FOR_A_LINE) for each in apart):
            apart.insert(0, point)
    return apart


def point_before(history: Sequence[Point]) -> Point | None:
    """The earlier point with which the latest makes a credible line: one that rises."""
    *earlier, now = points_apart(distinct_points(history))
    if not earlier:
        return None
    before = earlier[-1]
    rises = (now.update_time > before.update_time) == (now.retention > before.retention)
    return before if rises else None


def on_line(first: Point, second: Point, retention: float) -> Point:
    """The time at another retention on the line through two points, with its standard error."""
    reach = (retention - second.retention) / (second.retention - first.retention)
    return Point(
        retention,
        second.update_time + reach * (second.update_time - first.update_time),
        math.hypot((1 + reach) * second.error, reach * first.error),
    )
