"""Guards around Algorithm 2: what it needs where measured times do not lie on a clean curve.

`guarded_pruned_rates` is the place where all guards come together; the functions below it are the
guards, each with its reason. What the server remembers of a worker's times, and when it forgets
them, is in `speed_history.py`. The setting `literal_algorithm_2` turns all of this off.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from adaptcl.settings import Unless, setting
from adaptcl.strategies.adaptcl.pruned_rate import (
    Point,
    RateSettings,
    learned_rates,
    rate_to_reach,
    target_retention,
)

_MEMORY = 4  # the polynomial goes through at most this many points

_REACH = 8.0
"""The largest plausible ratio of the relative change of retention to the relative gap in time. A
larger one would mean that less than an eighth of the time depends on the size. (On the paper's
fastest links, B_max = 30, a seventh does.)"""

_MOST_GROWTH = 1.5  # a retention above this is far beyond the whole model and no answer

_CERTAIN = 3.0  # standard errors by which two mean times must differ to be taken for different

_LIKELY = 2.0  # standard errors by which the times of two sizes must differ for their line to count

_CLEARLY_SMALLER = 0.2
"""Two sizes this far apart (relative) show whether the time depends on the size."""

_NEGLIGIBLE = 0.05
"""If only this share of the time depends on the size, a smaller sub-model is not worth it."""

_SAME = 1e-6  # times or retentions closer than this (relative) are equal


@dataclass(frozen=True)
class GuardSettings(RateSettings):
    """What the guards are set by, beside the parameters of Algorithm 2."""

    target_time: str = learned_rates(
        "reachable",
        "the update time that workers are pruned to: the fastest worker's, as in the paper, or "
        "the slowest's at its smallest size if that is later, so that nobody is pruned in vain",
        choices=("reachable", "fastest"),
    )
    least_speed_up: float = setting(
        1.5,
        "prune only where rounds become at least this many times as fast as with whole models; "
        "1 prunes for any gain, as in the paper",
        at_least=1,
        condition=Unless("pruned_rates", "literal_algorithm_2"),
    )
    literal_min_retention: bool = learned_rates(
        False, "apply γ_min only where Algorithm 2 does, so that retention can fall below it"
    )
    grow: bool = setting(
        True,
        "let a sub-model grow back when its worker becomes faster (not in the paper)",
        condition=Unless("pruned_rates", "literal_algorithm_2"),
    )


@dataclass(frozen=True)
class TargetTime:
    """The update time that all workers should reach, with the standard error of whoever sets it."""

    time: float
    error: float = 0.0


@dataclass(frozen=True)
class GuardedRates:
    """What pruned-rate learning decides for the workers that it knows."""

    rates: Mapping[int, float]  # P by worker; negative where a sub-model grows
    speed_up: float  # how many times as fast as with whole models rounds can become
    slow_at_any_size: tuple[int, ...]
    """Workers that are too slow and would not be faster with a smaller sub-model."""


# Algorithm 2 with all guards --------------------------------------------------------------------


def guarded_pruned_rates(
    histories: Mapping[int, Sequence[Point]],
    setting_the_pace: Sequence[int],
    at_their_floor: Container[int],
    floor: float,
    settings: GuardSettings,
) -> GuardedRates:
    """P of every worker, from what is remembered of its speed, the newest point last.

    Nobody waits for a worker that has left or is late, so only those in `setting_the_pace` decide
    the target. No retention falls below `floor`. A worker in `at_their_floor` could cut nothing at
    its present size, so it is not asked again.
    """
    if not setting_the_pace:
        return GuardedRates({}, 1.0, ())
    pace = [histories[worker] for worker in setting_the_pace]
    target = guarded_target_time(pace, settings.grow)  # line 1
    if settings.target_time == "reachable":
        floors = {w: 1.0 if w in at_their_floor else floor for w in setting_the_pace}
        target = reachable_target_time(target, [(histories[w], f) for w, f in floors.items()])
    whole = whole_model_round(pace)
    speed_up = whole.time / target.time
    if not is_worth_pruning(speed_up, pace, settings.least_speed_up):
        target = whole
    rates, slow = {}, []
    for worker, history in histories.items():  # line 2
        if not differs(history[-1], target.time, target.error):
            rates[worker] = 0.0
            continue
        rate = guarded_pruned_rate(history, target.time, settings)  # lines 3 to 10
        rates[worker] = min(rate, 0.0) if worker in at_their_floor else rate
        if is_slow_at_any_size(history, target.time, settings):
            slow.append(worker)
    return GuardedRates(rates, speed_up, tuple(slow))


def guarded_pruned_rate(history: Sequence[Point], target: float, settings: GuardSettings) -> float:
    """P of one worker, in [0, ρ_max]; negative if it is faster than the target and may grow."""
    now = history[-1]
    if not now.usable or not math.isfinite(target) or target <= 0:
        return 0.0
    wanted = plausible_retention(distinct_points(history), target, settings.alpha)  # lines 4, 9
    if now.update_time < target:
        return growth_to_reach(wanted, now, settings) if settings.grow else 0.0
    if not follows_size(history):
        return 0.0
    wanted = hold_min_retention(wanted, settings)
    return min(rate_to_reach(wanted, now, settings), settings.max_pruned_rate)  # lines 5 to 7, 10


# The target (line 1) ----------------------------------------------------------------------------


def guarded_target_time(histories: Sequence[Sequence[Point]], grow: bool) -> TargetTime:
    """φ_min, where a pruned worker counts with the time of its whole model.

    A pruned worker never hits the target exactly and sometimes becomes the fastest. If it set the
    pace, the others would be pruned after it, one of them would become the fastest, and noise of
    one percent would drive everybody down to γ_min. A worker with a single point counts with its
    time now, unless it may grow and so need not set the pace.
    """
    usable = [
        whole_model_point(history) if grow or len(distinct_points(history)) > 1 else history[-1]
        for history in histories
        if history[-1].usable
    ]
    fastest = min(usable, key=lambda point: point.update_time, default=None)
    return (
        TargetTime(math.nan) if fastest is None else TargetTime(fastest.update_time, fastest.error)
    )


def reachable_target_time(
    fastest: TargetTime, workers: Sequence[tuple[Sequence[Point], float]]
) -> TargetTime:
    """The fastest worker's time or, if that is later, the time of the slowest at its floor.

    A round ends when its last worker does. If a worker cannot reach the fastest even at its floor,
    the others gain nothing by being faster than it: they would be cut in vain. With σ = 20 and
    γ_min = 0.1 the paper's target cuts nine of ten workers to γ_min.
    """
    least = [time_at_floor(history, floor) for history, floor in workers if history[-1].usable]
    latest = max(least, key=lambda point: point.update_time, default=None)
    if latest is None or not latest.update_time > fastest.time:
        return fastest
    return TargetTime(latest.update_time, latest.error)


def time_at_floor(history: Sequence[Point], floor: float) -> Point:
    """The shortest time that a worker can come to, as far as its points tell."""
    points = distinct_points(history)
    now = points[-1]
    if now.retention <= floor or not follows_size(history):
        return now
    # Time in proportion to the size is the most that a cut can save.
    least = Point(floor, now.update_time * floor / now.retention, now.error * floor / now.retention)
    before = points_apart(points)[:-1]
    if before and _rises(before[-1], now) and _likely_differ(before[-1], now):
        on_line = point_on_line(before[-1], now, floor)
        return max(least, on_line, key=lambda point: point.update_time)
    return least


def whole_model_point(history: Sequence[Point]) -> Point:
    """The time of a worker's whole model: measured, or estimated from its smaller sizes."""
    points = distinct_points(history)
    now = points[-1]
    measured = [p for p in history if p.usable and p.retention >= 1]
    if measured:
        return max(now, measured[-1], key=lambda point: point.update_time)
    before = points_apart(points)[:-1]
    if before and _rises(before[-1], now) and _likely_differ(before[-1], now):
        return point_on_line(before[-1], now, 1.0)
    # Without a credible slope: time in proportion to what shrank most is an upper bound.
    share = min(now.retention, now.flops)
    return Point(1.0, now.update_time / share, now.error / share)


# Whether to prune at all (line 3) ---------------------------------------------------------------


def whole_model_round(histories: Sequence[Sequence[Point]]) -> TargetTime:
    """How long a round would take if everybody had the whole model."""
    whole = [whole_model_point(history) for history in histories if history[-1].usable]
    slowest = max(whole, key=lambda point: point.update_time, default=None)
    return (
        TargetTime(math.nan) if slowest is None else TargetTime(slowest.update_time, slowest.error)
    )


def is_worth_pruning(
    speed_up: float, histories: Sequence[Sequence[Point]], least_speed_up: float
) -> bool:
    """Whether rounds become so much faster that it makes up for what sub-models learn less.

    VGG16 on CIFAR-10 at σ = 2 with int8 both ways is the case where they do not. The slowest worker
    takes 1.4 times as long as the fastest. AdaptCL cut 45 % of the parameters, its rounds became
    1.4 times as fast, and at equal time it had 87.5 % where FedAVG had 87.9 (`table-equal-time`).
    The speed-up is measured from whole models, so it is the same before and after a pruning. Once
    somebody is pruned, half of the gain is enough: noise must not turn the decision back and forth.
    """
    begun = any(history[-1].retention < 1 for history in histories)
    least = (1 + least_speed_up) / 2 if begun else least_speed_up
    return not speed_up < least


def differs(point: Point, time: float, error: float = 0.0, certainty: float = _CERTAIN) -> bool:
    """Whether two mean times differ by more than noise.

    On a real network equal workers take a little more or less time. Pruning for that would only
    make models smaller.
    """
    return abs(point.update_time - time) > certainty * math.hypot(point.error, error)


def follows_size(history: Sequence[Point]) -> bool:
    """Whether a worker's time may depend on its sub-model's size: yes, unless it was seen not to.

    Where it does not, pruning makes the model worse and nobody faster. The newest size that tells
    decides, because the time may have followed the size only down to some size. A time that has
    *risen* with a smaller size says that conditions change, and nothing about the size.
    """
    usable = [point for point in history if point.usable]
    for older in reversed(usable[:-1]):
        large, small = sorted((older, usable[-1]), key=lambda point: -point.retention)
        cut = _share_cut(large, small)
        if cut < _CLEARLY_SMALLER:
            continue
        share = (large.update_time - small.update_time) / large.update_time / cut
        doubt = _LIKELY * math.hypot(large.error, small.error) / large.update_time / cut
        if abs(share) < _NEGLIGIBLE and abs(share) + doubt < 1 / _REACH:
            return False
        if share - doubt > _NEGLIGIBLE:
            return True
    return True


def is_slow_at_any_size(history: Sequence[Point], target: float, settings: GuardSettings) -> bool:
    """Whether only `follows_size` keeps a worker from being pruned."""
    return not follows_size(history) and guarded_pruned_rate(history[-1:], target, settings) > 0


def _share_cut(large: Point, small: Point) -> float:
    """The share by which one size is smaller than another: of parameters or FLOPs what fell less.

    Parameters alone do not tell: the layers that are cut first may have many and compute little.
    """
    shares = [small.retention / large.retention]
    if large.flops != small.flops:  # equal FLOPs may not have been counted
        shares.append(small.flops / large.flops)
    return 1 - max(shares)


# The curve (lines 4 and 9) ----------------------------------------------------------------------


def plausible_retention(points: Sequence[Point], target: float, alpha: float) -> float:
    """γ_target, by the polynomial if that is plausible, else by a line, else by the first rule.

    A polynomial through noisy points can ask for the impossible.
    """
    now = points[-1]
    newest = latest_points(points_apart(points))
    for used in (newest, newest[-2:]):
        if len(used) > 1:
            wanted = target_retention(used, target)
            if is_within_reach(wanted, now, target):
                return wanted
    return cautious_retention(now, target, alpha)


def distinct_points(history: Sequence[Point]) -> list[Point]:
    """The usable points; of equal times or retentions only the newest, as they have no slope."""
    chosen: list[Point] = []
    for point in reversed([p for p in history if p.usable]):
        is_equal = any(
            math.isclose(point.update_time, other.update_time, rel_tol=_SAME)
            or math.isclose(point.retention, other.retention, rel_tol=_SAME)
            for other in chosen
        )
        if not is_equal:
            chosen.append(point)
    return chosen[::-1]


def points_apart(points: Sequence[Point]) -> list[Point]:
    """The points whose times noise cannot have made different, if there are several.

    Between two sizes close together, as a small correction leaves them, noise can make any slope.
    Along a flat one a worker would be cut far too much.
    """
    kept = [points[-1]]
    for older in reversed(points[:-1]):
        if all(_likely_differ(each, older) for each in kept):
            kept.insert(0, older)
    return kept if len(kept) > 1 else list(points)


def latest_points(points: Sequence[Point]) -> Sequence[Point]:
    """The newest four points: a polynomial through more invites Runge's phenomenon."""
    return points[-_MEMORY:]


def is_within_reach(wanted: float, now: Point, target: float) -> bool:
    """Whether a change to this retention is plausible: in the right direction and not too far.

    A curve that asks for a large change of size for a small gap in time was made by noise.
    """
    gap = (now.update_time - target) / now.update_time
    furthest = now.retention * (1 - _REACH * gap)
    low, high = sorted((now.retention, min(max(furthest, 0.0), _MOST_GROWTH)))
    return low <= wanted <= high


def cautious_retention(now: Point, target: float, alpha: float) -> float:
    """γ_target by the rule of the first pruning: line 9, solved for the retention.

    So ρ_min and γ_min hold for a first pruning too.
    """
    gap = (now.update_time - target) / now.update_time
    return now.retention * (1 - gap / alpha)


def point_on_line(first: Point, second: Point, retention: float) -> Point:
    """The time at another retention on the line through two points, with its standard error."""
    reach = (retention - second.retention) / (second.retention - first.retention)
    return Point(
        retention,
        second.update_time + reach * (second.update_time - first.update_time),
        math.hypot((1 + reach) * second.error, reach * first.error),
    )


def _likely_differ(one: Point, other: Point) -> bool:
    return differs(one, other.update_time, other.error, _LIKELY)


def _rises(first: Point, second: Point) -> bool:
    """Whether more retention takes longer, as it should."""
    return (second.update_time > first.update_time) == (second.retention > first.retention)


# The rate (lines 5 to 10) -----------------------------------------------------------------------


def hold_min_retention(wanted: float, settings: GuardSettings) -> float:
    """γ_target, but at least γ_min: as printed, line 5 lets the retention fall below it."""
    if settings.literal_min_retention:
        return wanted
    return max(wanted, settings.min_retention)


def growth_to_reach(wanted: float, now: Point, settings: GuardSettings) -> float:
    """The negative rate by which a sub-model grows towards γ_target, at most to the whole model.

    Without it a worker that was slow for a while would keep its small sub-model for good.
    """
    wanted = min(1.0, wanted)
    if wanted - now.retention < settings.min_pruned_rate:
        return 0.0
    return (now.retention - wanted) / now.retention
