"""What the server remembers of a worker's speed, and when it forgets.

Points make a curve only if they were measured under the same conditions. Nobody tells the server
when a link gets slower or another program takes the processor; it has to see it in the times. So
each new point is held against what is known already, and if it contradicts that, all the rest is
forgotten and learning begins anew: two points of different conditions make a line that leads
anywhere, and a worker that follows it may end far from its target and stay there.

At a size that was measured before, the same time is expected. From other sizes bounds follow: a
smaller sub-model takes less time than a larger one or the same, and hardly less than in proportion
to its parameters, which travel, or its FLOPs, which are computed, unless the line through the last
two sizes says so. Within these bounds curves may bend, as they do where layers that are cut first
have many parameters and little to compute, or few and much.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from adaptcl.storage import Tree
from adaptcl.strategies.adaptcl.pruned_rate import (
    Point,
    RateSettings,
    curve,
    follows_size,
    on_line,
    pruned_rate,
)
from adaptcl.strategies.adaptcl.pruning_warnings import would_prune_in_vain

_CHANGED = 0.1
"""An update time that differs this much (relative) from what was expected means that the worker has
changed, and not only its sub-model. Curves are not straight, so less may well be the curve."""

_DOUBT = 2.0
"""Against other sizes noise is taken for this much larger than the largest that was seen: of a few
times the spread can be small by chance, and forgetting for nothing makes everybody smaller."""


def remember(history: Sequence[Point], point: Point) -> list[Point]:
    """A worker's history, oldest first, with its newest measurement at the end."""
    size = (point.retention, point.flops)
    same = [other for other in history if (other.retention, other.flops) == size]
    others = [other for other in history if other.retention != point.retention]
    has_changed = bool(same) and _contradicts(point, same[-1], same[-1])
    if has_changed or _contradicts_curve(point, curve(others)):
        return [point]
    return [*others, point]


def _contradicts_curve(point: Point, known: Sequence[Point]) -> bool:
    """Whether a time is not what the times at other sizes let expect."""
    if not known or not point.usable:
        return False
    noise = _DOUBT * max(each.error / each.update_time for each in (*known, point))
    point, *known = [replace(p, error=noise * p.update_time) for p in (point, *known)]
    allowed = _allowed(known, point)
    return _contradicts(point, min(allowed, key=_time), max(allowed, key=_time))


def _allowed(known: Sequence[Point], size: Point) -> list[Point]:
    """What another size may take: all between the shortest and the longest of these.

    A time is a sum of parts that stay, that follow the parameters and that follow the FLOPs.
    """
    last = known[-1]
    shares = (1.0, size.retention / last.retention, size.flops / last.flops)
    allowed = [
        replace(last, update_time=last.update_time * share, error=last.error * share)
        for share in shares
    ]
    if len(known) > 1:
        straight = on_line(known[-2], last, size.retention)
        allowed += [straight] if straight.usable else []
    return allowed


def _time(point: Point) -> float:
    return point.update_time


def _contradicts(point: Point, low: Point, high: Point) -> bool:
    """Whether a time is outside its bounds by more than the curve's bend and noise explain."""
    if low.update_time <= point.update_time <= high.update_time:
        return False
    bound = low if point.update_time < low.update_time else high
    gap = abs(point.update_time - bound.update_time)
    return gap > _CHANGED * bound.update_time and point.differs(bound.update_time, bound.error)


# How far a mean update time may be off by chance, on a clock that is never twice the same.
#
# Of a few times their own spread says little: of one nothing at all, and of two it is small by
# chance often enough that equal workers would be pruned for it. But how much times vary is much
# the same for all workers of a run, so a worker's own spread counts together with what is typical
# of everybody: at first an assumption, then what repeated times have shown. On a clock without
# noise there is nothing to assume, and a spread is a change of conditions, which is a worker's
# own.

TYPICAL_NOISE = 0.1
"""The relative spread that is assumed of a real clock until it is known: of a link that others use,
of a processor that has other things to do."""

_WORTH = 4.0
"""What is typical of everybody counts as much as so many more times of the worker itself."""

_ENOUGH = 8
"""Pairs of times of the same task from which what is typical can be told."""

_MEDIAN_STEP = 0.6745 * math.sqrt(2)
"""The median distance of two draws from a normal distribution, in its standard deviations."""


class Noise:
    """What a run knows of the noise of its clock."""

    def __init__(self, assumed: float) -> None:
        """`assumed` is the relative spread of equal tasks' times; 0 for a clock without noise."""
        self._typical = assumed
        self._is_exact = assumed == 0
        self._steps: list[float] = []
        """From one time to the next of the same task, as absolute log ratios."""

    def watch(self, repeated: Iterable[Sequence[float]]) -> None:
        """Learn what is typical from each worker's times of one sub-model."""
        if self._is_exact:
            return
        for times in repeated:
            usable = [time for time in times if math.isfinite(time) and time > 0]
            self._steps += [abs(math.log(second / first)) for first, second in pairwise(usable)]
        if len(self._steps) >= _ENOUGH:
            # The median, because a worker that has really changed must not speak for all.
            self._typical = statistics.median(self._steps) / _MEDIAN_STEP
            self._steps = []

    def error(self, times: Sequence[float]) -> float:
        """How far the mean of these times may be off, as a standard error."""
        count = len(times)
        spread = statistics.stdev(times) if count > 1 else 0.0
        if not self._is_exact:
            typical = self._typical * statistics.fmean(times)
            own = (count - 1) * spread**2
            spread = math.sqrt((_WORTH * typical**2 + own) / (_WORTH + count - 1))
        return spread / math.sqrt(count)

    def snapshot(self) -> Tree:
        """All that is needed to go on."""
        return {"typical": self._typical, "steps": list(self._steps)}

    def restore(self, tree: Tree) -> None:
        """Go on from a snapshot."""
        self._typical = tree["typical"]
        self._steps = tree["steps"]


# Workers that are too slow and would be as slow with a smaller sub-model: the user is told once.
#
# Pruning them would only make the model worse (`rates.follows_size`), so the others wait for
# them.


class InVain:
    """Who is slow at any size, and of whom the user has been told."""

    def __init__(self) -> None:
        self._told: set[int] = set()
        self._new: list[int] = []

    def look(
        self, worker: int, history: Sequence[Point], target: float, settings: RateSettings
    ) -> None:
        """Note a worker that its newest time would have pruned, were it not for those before."""
        if worker in self._told or follows_size(history):
            return
        if pruned_rate(history[-1:], target, settings) > 0:
            self._told.add(worker)
            self._new.append(worker)

    def warnings(self) -> tuple[str, ...]:
        """What to tell the user of who was noted since the last time."""
        new, self._new = self._new, []
        return (would_prune_in_vain(new),) if new else ()

    def snapshot(self) -> Tree:
        """All that is needed to go on, once warnings have been taken."""
        return sorted(self._told)

    def restore(self, tree: Tree) -> None:
        """Go on from a snapshot."""
        self._told = set(tree)
