"""What the server remembers of each worker's speed, and when it forgets it.

Points make a curve only if they were measured under the same conditions. Nobody tells the server
when a link gets slower or when another program takes the processor; it has to see that in the
times. So each new point is compared with what is known. If it contradicts that, everything else is
forgotten and learning starts again. Two points of different conditions make a line that leads
anywhere, and a worker that follows it may end far from its target.

The server expects the same time at a size that was measured before. Other sizes give bounds. A
smaller sub-model takes at most as long as a larger one. Its time falls at most in proportion to its
parameters or its FLOPs, whichever fell more. The line through the last two sizes may allow less.
Within these bounds a curve may bend, as it does where the layers that are cut first
have many parameters and little to compute, or the reverse.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from adaptcl.storage import Tree
from adaptcl.strategies.adaptcl.guards import differs, distinct_points, point_on_line
from adaptcl.strategies.adaptcl.pruned_rate import Point

_CHANGED = 0.1
"""A time that differs this much (relative) from the expected one means that the worker has changed.
Curves are not straight, so a smaller difference may be the curve."""

_DOUBT = 2.0
"""Compared with other sizes, noise is taken for this many times the largest seen. The spread of a
few times can be small by chance, and forgetting without need makes everybody smaller."""

_WORTH = 4.0
"""The typical noise of all workers counts as much as this many more times of the worker itself."""

_ENOUGH = 8  # how many pairs of times of the same task it takes to learn the typical noise

_MEDIAN_STEP = 0.6745 * math.sqrt(2)
"""The median distance of two draws from a normal distribution, in its standard deviations."""

Remember = Callable[[Sequence[Point], Point], list[Point]]
"""(a worker's history, its newest point) → its new history."""


class SpeedHistory:
    """The measured update times of all workers."""

    def __init__(self, workers: int, time_noise: float, remember: Remember) -> None:
        self._remember = remember
        self._times: list[list[float]] = [[] for _ in range(workers)]
        """Update times since the last decision, all of the worker's present sub-model."""
        self._points: list[list[Point]] = [[] for _ in range(workers)]
        self._noise = TimeNoise(time_noise)

    def add(self, worker: int, seconds: float) -> None:
        self._times[worker].append(seconds)

    def discard_times(self, worker: int) -> None:
        """Measure a worker anew: its size or its conditions may have changed."""
        self._times[worker].clear()

    def discard_all_times(self) -> None:
        self._times = [[] for _ in self._times]

    def has_times(self, worker: int) -> bool:
        return bool(self._times[worker])

    def points(self, worker: int) -> Sequence[Point]:
        """A worker's history, oldest point first."""
        return self._points[worker]

    def average_times(self, size: Callable[[int], tuple[float, float]]) -> None:
        """Make a point of each worker's times; `size` gives its retention and share of FLOPs."""
        self._noise.learn(self._times)
        for worker, times in enumerate(self._times):
            if times:
                kept, flops = size(worker)
                point = Point(kept, statistics.fmean(times), self._noise.error(times), flops)
                self._points[worker] = self._remember(self._points[worker], point)

    def snapshot(self) -> dict[str, Tree]:
        return {
            "times": [list(times) for times in self._times],
            "histories": [
                [[p.retention, p.update_time, p.error, p.flops] for p in h] for h in self._points
            ],
            "noise": self._noise.snapshot(),
        }

    def restore(self, tree: Tree) -> None:
        self._times = tree["times"]
        self._points = [[Point(*point) for point in h] for h in tree["histories"]]
        self._noise.restore(tree["noise"])


# Remembering and forgetting ---------------------------------------------------------------------


def remember_every_size(history: Sequence[Point], point: Point) -> list[Point]:
    """The newest point of every size so far, as Algorithm 2 assumes; broken ones are left out."""
    if not point.usable:
        return list(history)
    return [*(other for other in history if other.retention != point.retention), point]


def remember_same_conditions(history: Sequence[Point], point: Point) -> list[Point]:
    """The newest point of every size, or only this one if it contradicts the others."""
    size = (point.retention, point.flops)
    same = [other for other in history if (other.retention, other.flops) == size]
    others = [other for other in history if other.retention != point.retention]
    has_changed = bool(same) and _contradicts(point, same[-1], same[-1])
    if has_changed or _contradicts_curve(point, distinct_points(others)):
        return [point]
    return [*others, point]


def _contradicts_curve(point: Point, known: Sequence[Point]) -> bool:
    """Whether a time is outside what the times at other sizes allow."""
    if not known or not point.usable:
        return False
    noise = _DOUBT * max(each.error / each.update_time for each in (*known, point))
    point, *known = [replace(p, error=noise * p.update_time) for p in (point, *known)]
    allowed = _extremes(known, point)
    return _contradicts(point, min(allowed, key=_time), max(allowed, key=_time))


def _extremes(known: Sequence[Point], size: Point) -> list[Point]:
    """The shortest and longest time that another size may take are among these.

    A time is a sum of a constant, a part that follows the parameters and one that follows the
    FLOPs.
    """
    last = known[-1]
    shares = (1.0, size.retention / last.retention, size.flops / last.flops)
    allowed = [
        replace(last, update_time=last.update_time * share, error=last.error * share)
        for share in shares
    ]
    if len(known) > 1:
        straight = point_on_line(known[-2], last, size.retention)
        allowed += [straight] if straight.usable else []
    return allowed


def _time(point: Point) -> float:
    return point.update_time


def _contradicts(point: Point, low: Point, high: Point) -> bool:
    """Whether a time is outside its bounds by more than a bent curve and noise explain."""
    if low.update_time <= point.update_time <= high.update_time:
        return False
    bound = low if point.update_time < low.update_time else high
    gap = abs(point.update_time - bound.update_time)
    return gap > _CHANGED * bound.update_time and differs(point, bound.update_time, bound.error)


# Noise ------------------------------------------------------------------------------------------


class TimeNoise:
    """How far a mean update time may be off by chance.

    The spread of a few times says little: of one time nothing, and of two it is small by chance so
    often that equal workers would be pruned for it. But noise is about the same for all workers of
    a run. So a worker's spread counts together with what is typical of all: first an assumption,
    then what repeated times have shown. An exact clock has no noise, so there a spread is a change
    of conditions of that worker.
    """

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
            usable = [time for time in times if math.isfinite(time) and time > 0]
            self._steps += [abs(math.log(second / first)) for first, second in pairwise(usable)]
        if len(self._steps) >= _ENOUGH:
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
            spread = math.sqrt((_WORTH * typical**2 + squares) / (_WORTH + count - 1))
        return spread / math.sqrt(count)

    def snapshot(self) -> Tree:
        return {"typical": self._typical, "steps": list(self._steps)}

    def restore(self, tree: Tree) -> None:
        self._typical = tree["typical"]
        self._steps = tree["steps"]
