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

from collections.abc import Sequence
from dataclasses import replace

from adaptcl.strategies.rates import Point, curve, on_line

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
