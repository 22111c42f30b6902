"""Newton's interpolation by divided differences, the tool of pruned-rate learning."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from adaptcl.settings import Unless, setting


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


# Pruned-rate learning: from measured update times to how much each worker prunes (Algorithm 2).
#
# For each worker the server remembers how long it took at each retention it has had. Newton's
# interpolation of retention over update time answers: at which retention would this worker be as
# fast as the target? Before the first pruning there is only one point, and a cautious straight
# line stands in for the curve.
#
# The paper leaves open what happens when measurements do not make a curve. Here every answer is a
# rate from 0 to ρ_max: a polynomial that asks for the impossible gives way to the line through
# the last two points, and that to the cautious first rule. Where two sizes have shown that the
# time hardly follows the size, nothing is pruned: it would make the model worse and nobody
# faster.

_MEMORY = 4
"""How many points the polynomial goes through at most: more invite Runge's phenomenon."""

_REACH = 8.0
"""A curve that asks for a relative change of the retention larger than this many times the relative
gap in time is taken for noise: it would mean that less than an eighth of the time is the size's.
(On the paper's fastest links, B_max = 30, a seventh of it is.)"""

_MOST_GROWTH = 1.5
"""An answer far above the whole model is no answer."""

_CERTAIN = 3.0
"""Standard errors by which mean times must differ. On a real network tasks of equal workers take
now a little longer and now a little less; to prune after that would only make models smaller."""

_LIKELY = 2.0
"""Standard errors by which the times of two sizes must differ for their line to count."""

_CLEARLY = 0.2
"""Two sizes this far apart (relative), in parameters and in FLOPs, can tell what follows the size.
Parameters alone cannot: layers that are cut first may have many and little to compute."""

_HARDLY = 0.05
"""A share of the time that is not worth a smaller sub-model, if it is what follows the size."""

_SAME = 1e-6
"""Update times closer than this (relative) are one point, not two."""


@dataclass(frozen=True)
class RateSettings:
    """The control parameters of pruned-rate learning."""

    pruning_interval: int = setting(10, "rounds between prunings (PI)", at_least=1)
    first_pruning: int = setting(
        0,
        "round of the first pruning, at the earliest 2; 0 prunes first after one pruning interval",
        at_least=0,
    )
    max_pruned_rate: float = setting(
        0.5,
        "largest pruned rate of one pruning (ρ_max)",
        at_least=0,
        below=1,
        condition=Unless("pruned_rates"),
    )
    min_pruned_rate: float = setting(
        0.02,
        "skip prunings with a smaller pruned rate (ρ_min)",
        at_least=0,
        below=1,
        condition=Unless("pruned_rates"),
    )
    min_retention: float = setting(
        0.1,
        "smallest retention of a sub-model (γ_min)",
        above=0,
        at_most=1,
        condition=Unless("pruned_rates"),
    )
    alpha: float = setting(
        2.0,
        "caution of the first pruning: larger values prune less (α)",
        at_least=1,
        condition=Unless("pruned_rates"),
    )
    literal_min_retention: bool = setting(
        False,
        "apply γ_min only where Algorithm 2 does, so that retention can fall below it",
        condition=Unless("pruned_rates"),
    )
    grow: bool = setting(
        False,
        "let a sub-model grow back when its worker becomes faster (not in the paper)",
        condition=Unless("pruned_rates"),
    )

    @property
    def first_pruning_round(self) -> int:
        """The first round in which workers may be told to prune: not the very first, in which
        nothing is measured yet."""
        return self.first_pruning or max(2, self.pruning_interval)

    def is_pruning_round(self, round_: int) -> bool:
        """Whether workers may be told to prune in this round."""
        first = self.first_pruning or self.pruning_interval
        return round_ >= first and (round_ - first) % self.pruning_interval == 0


@dataclass(frozen=True)
class Point:
    """A worker's mean update time over the rounds it had one retention."""

    retention: float
    update_time: float
    error: float = 0.0
    """How far the mean may be off, as a standard error; 0 where nothing tells."""
    flops: float = 1.0
    """The sub-model's, as a fraction of the whole model's."""

    def differs(self, time: float, error: float = 0.0, certainty: float = _CERTAIN) -> bool:
        """Whether a time that may itself be off is another one, and not the same with noise."""
        return abs(self.update_time - time) > certainty * math.hypot(self.error, error)

    @property
    def usable(self) -> bool:
        """Whether the measurement can be one: finite and above zero."""
        numbers = (self.retention, self.update_time, self.flops)
        return all(math.isfinite(x) and x > 0 for x in numbers)


def pruned_rate(history: Sequence[Point], target: float, settings: RateSettings) -> float:
    """The pruned rate P for a worker with this history, oldest point first, newest last.

    `target` is the update time to reach. The rate is in [0, ρ_max] and leaves at least γ_min
    (unless `literal_min_retention` says otherwise). Where growing is allowed, a worker that is
    faster than the target gets a negative rate: its sub-model grows by that fraction.
    """
    now = history[-1]
    if not now.usable or not math.isfinite(target) or target <= 0:
        return 0.0
    points = curve(history)
    if now.update_time >= target:
        if not follows_size(history):
            return 0.0
        wanted = _retention_at(points, target, settings.alpha)
        if now.retention - max(wanted, settings.min_retention) < settings.min_pruned_rate:
            return 0.0
        if not settings.literal_min_retention:
            wanted = max(wanted, settings.min_retention)
        return min(max(0.0, (now.retention - wanted) / now.retention), settings.max_pruned_rate)
    if not settings.grow:
        return 0.0
    wanted = min(1.0, _retention_at(points, target, settings.alpha))
    if wanted - now.retention < settings.min_pruned_rate:
        return 0.0
    return (now.retention - wanted) / now.retention


def follows_size(history: Sequence[Point]) -> bool:
    """Whether a worker's time may depend on its sub-model's size: yes, unless it was seen not to.

    The newest size that tells decides, as the time may have followed the size down to some size. A
    time that has *risen* with a smaller size says that conditions change, and nothing of the size.
    """
    usable = [point for point in history if point.usable]
    for older in reversed(usable[:-1]):
        large, small = sorted((older, usable[-1]), key=lambda point: -point.retention)
        cut = _cut_by(large, small)
        if cut < _CLEARLY:
            continue
        share = (large.update_time - small.update_time) / large.update_time / cut
        doubt = _LIKELY * math.hypot(large.error, small.error) / large.update_time / cut
        if abs(share) < _HARDLY and abs(share) + doubt < 1 / _REACH:
            return False
        if share - doubt > _HARDLY:
            return True
    return True


def _cut_by(large: Point, small: Point) -> float:
    """By what part one size is smaller than another: of parameters or FLOPs what fell less."""
    shares = [small.retention / large.retention]
    if large.flops != small.flops:  # or they were not counted
        shares.append(small.flops / large.flops)
    return 1 - max(shares)


@dataclass(frozen=True)
class Target:
    """The update time that all workers should reach."""

    time: float
    error: float = 0.0
    """How far it may be off, as a standard error: that of whoever sets it."""


def target_time(now: Sequence[Point], histories: Sequence[Sequence[Point]], grow: bool) -> Target:
    """The update time that all workers should reach: φ_min, the shortest one now.

    A pruned worker never hits the target exactly, and sometimes becomes the fastest. If it set
    the pace then, the others would be pruned after it, one of them would become the fastest, and
    noise of one percent would drive everybody down to γ_min. So a worker whose curve is known
    counts with the time its *whole* model takes. A worker with a single point has changed since
    it was pruned; it counts with its time now, unless it may grow and so need not set the pace.
    """
    usable = [
        _whole_model(history) if grow or len(curve(history)) > 1 else point
        for point, history in zip(now, histories, strict=True)
        if point.usable
    ]
    fastest = min(usable, key=lambda point: point.update_time, default=None)
    return Target(math.nan) if fastest is None else Target(fastest.update_time, fastest.error)


def _retention_at(points: Sequence[Point], target: float, alpha: float) -> float:
    """The retention at which a worker would take `target` seconds, as well as we can know."""
    now = points[-1]
    gap = (now.update_time - target) / now.update_time
    furthest = now.retention * (1 - _REACH * gap)
    low, high = sorted((now.retention, min(max(furthest, 0.0), _MOST_GROWTH)))
    recent = _told_apart(points)[-_MEMORY:]
    for used in (recent, recent[-2:]):
        if len(used) > 1:
            wanted = interpolate([p.update_time for p in used], [p.retention for p in used], target)
            if low <= wanted <= high:
                return wanted
    return now.retention * (1 - gap / alpha)


def _told_apart(points: Sequence[Point]) -> list[Point]:
    """The points that cannot be the same as a newer one with noise, if there are several.

    Of two sizes close together, as a small correction leaves them, the slope can be anything, and
    where it is flat a worker would be cut far too much for the little that it is off.
    """
    kept = [points[-1]]
    for older in reversed(points[:-1]):
        if all(_differ(each, older) for each in kept):
            kept.insert(0, older)
    return kept if len(kept) > 1 else list(points)


def _differ(one: Point, other: Point) -> bool:
    """Whether the times of two sizes are so far apart that their line is not noise."""
    return one.differs(other.update_time, other.error, _LIKELY)


def _whole_model(history: Sequence[Point]) -> Point:
    """What a worker's whole model takes: measured, or as well as we can know."""
    points = curve(history)
    now = points[-1]
    measured = [p for p in history if p.usable and p.retention >= 1]
    if measured:
        return max(now, measured[-1], key=lambda point: point.update_time)
    before = _told_apart(points)[:-1]
    if before and _rises(before[-1], now) and _differ(before[-1], now):
        return on_line(before[-1], now, 1.0)
    # Without a slope that can be one, time in proportion to what shrank most is an upper bound.
    share = min(now.retention, now.flops)
    return Point(1.0, now.update_time / share, now.error / share)


def on_line(first: Point, second: Point, retention: float) -> Point:
    """What the straight line through two points says of another retention, and how surely."""
    reach = (retention - second.retention) / (second.retention - first.retention)
    return Point(
        retention,
        second.update_time + reach * (second.update_time - first.update_time),
        math.hypot((1 + reach) * second.error, reach * first.error),
    )


def _rises(first: Point, second: Point) -> bool:
    """Whether more retention takes longer, as it should."""
    return (second.update_time > first.update_time) == (second.retention > first.retention)


def curve(history: Sequence[Point]) -> list[Point]:
    """The points a polynomial can go through: of equal times or retentions the newest stays."""
    chosen: list[Point] = []
    for point in reversed([p for p in history if p.usable]):
        clash = any(
            math.isclose(point.update_time, other.update_time, rel_tol=_SAME)
            or math.isclose(point.retention, other.retention, rel_tol=_SAME)
            for other in chosen
        )
        if not clash:
            chosen.append(point)
    return chosen[::-1]
