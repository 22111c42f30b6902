"""What the server remembers of each worker's speed, as points (γ, φ), and when it forgets it.

Measurements are noisy, so a point knows its standard error, and two points make a line only if
noise cannot have made them differ.

Points make a curve only if they were measured under the same conditions. Nobody tells the server
when a link gets slower or when another program takes the processor; it has to see that in the
times. So each new point is compared with what is known. If it contradicts that, everything else is
forgotten and learning starts again: two points of different conditions make a line that leads
anywhere, and a worker that follows it may end far from its target.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from itertools import pairwise
from operator import attrgetter
from typing import ClassVar

from adaptcl.storage import Remembered, Tree
from adaptcl.units import Kept, UnitMap, flops, retention

_ERRORS_TO_DIFFER = 3.0
"""Standard errors by which two mean times must differ to be taken for different."""

ERRORS_FOR_A_LINE = 2.0
"""Standard errors by which the times of two sizes must differ for their line to count."""

_SAME = 1e-6  # times or retentions closer than this (relative) are equal

_CHANGE_OF_CONDITIONS = 0.1
"""A time that differs this much (relative) from the expected one means that the worker has changed.
Curves are not straight, so a smaller difference may be the curve."""

_NOISE_MARGIN = 2.0
"""Compared with other sizes, noise is taken for this many times the largest seen. The spread of a
few times can be small by chance, and forgetting without need makes everybody smaller."""

_TYPICAL_WEIGHT = 4.0
"""The typical noise of all workers counts as much as this many more times of the worker itself."""

_PAIRS_NEEDED = 8  # pairs of times of the same task that it takes to learn the typical noise

_MEDIAN_STEP = 0.6745 * math.sqrt(2)
"""The median distance of two draws from a normal distribution, in its standard deviations."""


@dataclass(frozen=True)
class Point:
    """What was measured of a worker at one size: (γ, φ), and two figures for the guards."""

    retention: float
    update_time: float
    error: float = 0.0  # standard error of the mean update time; 0 if unknown
    flops: float = 1.0  # FLOPs of the sub-model as a share of the whole model's


by_time = attrgetter("update_time")

Remember = Callable[[Sequence[Point], Point], list[Point]]
"""(a worker's history, its newest point) → its new history."""


class SpeedHistory(Remembered):
    """The measured update times of all workers."""

    remembered: ClassVar[tuple[str, ...]] = ("times", "_noise")

    def __init__(self, workers: int, time_noise: float, remember: Remember) -> None:
        self.times: list[list[float]] = [[] for _ in range(workers)]
        """Update times since the last decision, all of the worker's present sub-model."""
        self.points: list[list[Point]] = [[] for _ in range(workers)]
        """What is remembered of each worker, the newest point last."""
        self._noise = TimeNoise(time_noise)
        self._remember = remember

    def add(self, worker: int, seconds: float) -> None:
        if math.isfinite(seconds) and seconds > 0:  # or a clock stood still, and tells nothing
            self.times[worker].append(seconds)

    def forget_times(self, worker: int) -> None:
        """Forget what was measured since the last decision, but no point."""
        self.times[worker].clear()

    def average_times(self, size: Callable[[int], tuple[float, float]]) -> None:
        """Make a point of each worker's times; `size` gives its retention and share of FLOPs."""
        self._noise.learn(self.times)
        for worker, times in enumerate(self.times):
            if times:
                retention, flops = size(worker)
                point = Point(retention, statistics.fmean(times), self._noise.error(times), flops)
                self.points[worker] = self._remember(self.points[worker], point)

    def snapshot(self) -> Tree:
        points = [[list(astuple(point)) for point in history] for history in self.points]
        return {**super().snapshot(), "points": points}

    def restore(self, tree: Tree) -> None:
        super().restore(tree)
        self.points = [[Point(*point) for point in history] for history in tree["points"]]


def size_of(units: UnitMap, kept: Kept) -> tuple[float, float]:
    """A sub-model's retention, and the share of the model's FLOPs that it needs."""
    whole = flops(units, units.everything())  # 0 where none were counted
    return retention(units, kept), flops(units, kept) / whole if whole else 1.0


# Remembering and forgetting ---------------------------------------------------------------------


def remember_every_size(history: Sequence[Point], point: Point) -> list[Point]:
    """The newest point of every size so far, as Algorithm 2 assumes."""
    return [*(other for other in history if other.retention != point.retention), point]


def remember_same_conditions(history: Sequence[Point], point: Point) -> list[Point]:
    """The newest point of every size, or only this one if it contradicts the others."""
    size = (point.retention, point.flops)
    same = [other for other in history if (other.retention, other.flops) == size]
    others = [other for other in history if other.retention != point.retention]
    if (same and _contradicts(point, same[-1:])) or (others and _contradicts_curve(point, others)):
        return [point]
    return [*others, point]


def _contradicts_curve(point: Point, others: Sequence[Point]) -> bool:
    """Whether a time is outside what the times at other sizes allow.

    A time is a sum of a constant, a part that follows the parameters and one that follows the
    FLOPs. The line through the last two sizes may allow less. Within these bounds a curve may bend.
    """
    known = distinct_points(others)
    noise = _NOISE_MARGIN * max(each.error / each.update_time for each in (*known, point))
    point, *known = [replace(p, error=noise * p.update_time) for p in (point, *known)]
    last = known[-1]
    allowed = [
        replace(last, update_time=last.update_time * share, error=last.error * share)
        for share in (1.0, point.retention / last.retention, point.flops / last.flops)
    ]
    if len(known) > 1:
        straight = on_line(known[-2], last, point.retention)
        allowed += [straight] if straight.update_time > 0 else []
    return _contradicts(point, allowed)


def _contradicts(point: Point, allowed: Sequence[Point]) -> bool:
    """Whether a time is outside what is allowed by more than a bent curve and noise explain."""
    low, high = min(allowed, key=by_time), max(allowed, key=by_time)
    if low.update_time <= point.update_time <= high.update_time:
        return False
    bound = low if point.update_time < low.update_time else high
    gap = abs(point.update_time - bound.update_time)
    return gap > _CHANGE_OF_CONDITIONS * bound.update_time and differ(point, bound)


# Points and lines -------------------------------------------------------------------------------


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


# Noise ------------------------------------------------------------------------------------------


class TimeNoise(Remembered):
    """How far a mean update time may be off by chance.

    The spread of a few times says little: of one time nothing, and of two it is small by chance so
    often that equal workers would be pruned for it. But noise is about the same for all workers of
    a run. So a worker's spread counts together with what is typical of all: first an assumption,
    then what repeated times have shown. An exact clock has no noise, so there a spread is a change
    of conditions of that worker.
    """

    remembered: ClassVar[tuple[str, ...]] = ("_typical", "_steps")

    def __init__(self, assumed: float) -> None:
        """`assumed` is the relative spread of equal tasks' times; 0 for an exact clock."""
        self._typical = assumed
        self._is_exact = assumed == 0
        self._steps: list[float] = []
        """From one time to the next of the same task, as absolute log ratios."""

    def learn(self, repeated: Iterable[Sequence[float]]) -> None:
        """Learn the typical noise from each worker's times with one sub-model."""
        if self._is_exact:
            return
        for times in repeated:
            self._steps += [abs(math.log(second / first)) for first, second in pairwise(times)]
        if len(self._steps) >= _PAIRS_NEEDED:
            # The median, because a worker that has really changed must not count for all.
            self._typical = statistics.median(self._steps) / _MEDIAN_STEP
            self._steps = []

    def error(self, times: Sequence[float]) -> float:
        """The standard error of the mean of these times."""
        count = len(times)
        spread = statistics.stdev(times) if count > 1 else 0.0
        if not self._is_exact:
            typical = self._typical * statistics.fmean(times)
            squares = (count - 1) * spread**2
            spread = math.sqrt(
                (_TYPICAL_WEIGHT * typical**2 + squares) / (_TYPICAL_WEIGHT + count - 1)
            )
        return spread / math.sqrt(count)
