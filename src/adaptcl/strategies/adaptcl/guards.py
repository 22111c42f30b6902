"""Guards around Algorithm 2: what it needs where measured times do not lie on a clean curve.

`guarded_pruned_rates` is the place where all guards come together; the functions below it are the
guards, each with its reason. What the server remembers of a worker's times, and when it forgets
them, is in `speed_history.py`. The setting `literal_algorithm_2` turns all of this off.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from adaptcl.settings import When, setting
from adaptcl.strategies.adaptcl.pruned_rate import (
    RateSettings,
    learned_rates,
    rate_to_reach,
    target_retention,
)
from adaptcl.strategies.adaptcl.speed_history import (
    ERRORS_FOR_A_LINE,
    Point,
    by_time,
    differ,
    distinct_points,
    on_line,
    point_before,
    points_apart,
)

_MEMORY = 4  # the polynomial goes through at most this many points; more invite Runge's phenomenon

_STEEPEST_SLOPE = 8.0
"""The largest plausible ratio of the relative change of retention to the relative gap in time. A
larger one would mean that less than an eighth of the time depends on the size. (On the paper's
fastest links, B_max = 30, a seventh does.)"""

_MOST_GROWTH = 1.5  # a retention above this is far beyond the whole model and no answer

_CLEARLY_SMALLER = 0.2
"""Two sizes this far apart (relative) show whether the time depends on the size."""

_NEGLIGIBLE = 0.05
"""If only this share of the time depends on the size, a smaller sub-model is not worth it."""


@dataclass(frozen=True)
class GuardSettings(RateSettings):
    """What the guards are set by, beside the parameters of Algorithm 2."""

    target_time: str = learned_rates(
        "reachable",
        "the time workers are pruned to. fastest: the fastest worker's (the paper). reachable: the "
        "same, or the slowest worker's time at its smallest size if that is longer",
        choices=("reachable", "fastest"),
    )
    least_speed_up: float = setting(
        1.5,
        "prune, and train sparsely, only where rounds become at least this many times as fast as "
        "with whole models; 1 prunes for any gain, as in the paper",
        at_least=1,
        condition=When(unused=["pruned_rates", "literal_algorithm_2"]),
    )
    grow: bool = setting(
        True,
        "let a sub-model grow back when its worker becomes faster (not in the paper)",
        condition=When(unused=["pruned_rates", "literal_algorithm_2"]),
    )


@dataclass(frozen=True)
class GuardedRates:
    """What pruned-rate learning decides for the workers that it knows."""

    rates: Mapping[int, float]  # P by worker; negative where a sub-model grows
    speed_up: float = 1.0  # how many times as fast as with whole models rounds can become
    slow_at_any_size: tuple[int, ...] = ()
    """Workers that are too slow and would not be faster with a smaller sub-model."""
    is_worth_it: bool = True  # whether rounds become so much faster that pruning pays


# Algorithm 2 with all guards --------------------------------------------------------------------


def guarded_pruned_rates(
    histories: Mapping[int, Sequence[Point]],
    setting_the_pace: Sequence[int],
    stuck: Container[int],
    reachable_retention: float,
    settings: GuardSettings,
) -> GuardedRates:
    """P of every worker, from what is remembered of its speed, the newest point last.

    Nobody waits for a worker that has left or is late, so only those in `setting_the_pace` decide
    the target. A worker can come down to `reachable_retention` or, where it is `stuck` because it
    could cut nothing more, to its present size; who is stuck is not asked again.
    """
    if not setting_the_pace:
        return GuardedRates({})
    pace = [histories[worker] for worker in setting_the_pace]
    target = fastest_time(pace, settings.grow)  # line 1
    if settings.target_time == "reachable":
        smallest = [
            histories[worker][-1].retention if worker in stuck else reachable_retention
            for worker in setting_the_pace
        ]
        target = reachable_time(target, pace, smallest)
    whole = max(map(whole_model_point, pace), key=by_time)
    speed_up = whole.update_time / target.update_time
    is_worth_it = is_worth_pruning(speed_up, pace, settings.least_speed_up)
    if not is_worth_it:
        target = whole
    rates, slow = {}, []
    for worker, history in histories.items():  # line 2
        if not differ(history[-1], target):
            rates[worker] = 0.0
            continue
        rate = guarded_pruned_rate(history, target.update_time, settings)  # lines 3 to 10
        rates[worker] = min(rate, 0.0) if worker in stuck else rate
        by_size_alone = guarded_pruned_rate(history[-1:], target.update_time, settings)
        if by_size_alone > 0 and not follows_size(history):
            slow.append(worker)
    return GuardedRates(rates, speed_up, tuple(slow), is_worth_it)


def guarded_pruned_rate(history: Sequence[Point], target: float, settings: GuardSettings) -> float:
    """P of one worker, in [0, ρ_max]; negative if it is faster than the target and may grow."""
    now = history[-1]
    wanted = plausible_retention(history, target, settings.alpha)  # lines 3, 4 and 9
    if now.update_time < target:
        # Without growing, a worker that was slow for a while would keep its small sub-model.
        wanted = min(1.0, wanted)
        if not settings.grow or wanted - now.retention < settings.min_pruned_rate:
            return 0.0
        return (now.retention - wanted) / now.retention
    if not follows_size(history):
        return 0.0
    # As printed, line 5 lets the retention fall below γ_min.
    wanted = max(wanted, settings.min_retention)
    return min(rate_to_reach(wanted, now, settings), settings.max_pruned_rate)  # lines 5 to 7, 10


# The target (line 1) ----------------------------------------------------------------------------


def fastest_time(histories: Sequence[Sequence[Point]], grow: bool) -> Point:
    """φ_min, where a pruned worker counts with the time of its whole model.

    A pruned worker never hits the target exactly and sometimes becomes the fastest. If it set the
    pace, the others would be pruned after it, one of them would become the fastest, and noise of
    one percent would drive everybody down to γ_min. A worker with a single point counts with its
    time now, unless it may grow and so need not set the pace.
    """
    counted = [
        whole_model_point(history) if grow or len(distinct_points(history)) > 1 else history[-1]
        for history in histories
    ]
    return min(counted, key=by_time)


def reachable_time(
    fastest: Point, histories: Sequence[Sequence[Point]], smallest: Sequence[float]
) -> Point:
    """The fastest worker's time or, if that is later, the time of the slowest at its smallest size.

    A round ends when its last worker does. If a worker cannot reach the fastest even at its
    smallest size, the others gain nothing by being faster than it: they would be cut in vain. With
    σ = 20 and γ_min = 0.1 the paper's target cuts nine of ten workers to γ_min.
    """
    return max(fastest, *map(point_when_smallest, histories, smallest), key=by_time)


def point_when_smallest(history: Sequence[Point], smallest: float) -> Point:
    """The shortest time that a worker can come to, as far as its points tell."""
    now = history[-1]
    if now.retention <= smallest or not follows_size(history):
        return now
    # Time in proportion to the size is the most that a cut can save.
    time, error = (each * smallest / now.retention for each in (now.update_time, now.error))
    least = Point(smallest, time, error)
    before = point_before(history)
    return max(least, on_line(before, now, smallest), key=by_time) if before else least


def whole_model_point(history: Sequence[Point]) -> Point:
    """The time of a worker's whole model: measured, or estimated from its smaller sizes."""
    now = history[-1]
    measured = [point for point in history if point.retention >= 1]
    if measured:
        return max(now, measured[-1], key=by_time)
    if before := point_before(history):
        return on_line(before, now, 1.0)
    # Without a credible slope: time in proportion to what shrank most is an upper bound.
    share = min(now.retention, now.flops)
    return Point(1.0, now.update_time / share, now.error / share)


# Whether to prune at all ------------------------------------------------------------------------


def is_worth_pruning(
    speed_up: float, histories: Sequence[Sequence[Point]], least_speed_up: float
) -> bool:
    """Whether rounds become so much faster that it makes up for what sub-models learn less.

    VGG16 on CIFAR-10 at σ = 2 with int8 both ways is a case where they do not (docs/paper.md). The
    speed-up is measured from whole models, so it is the same before and after a pruning. Once
    somebody is pruned, half of the gain is enough: noise must not turn the decision back and forth.
    """
    begun = any(history[-1].retention < 1 for history in histories)
    return speed_up >= ((1 + least_speed_up) / 2 if begun else least_speed_up)


def follows_size(history: Sequence[Point]) -> bool:
    """Whether a worker's time may depend on its sub-model's size: yes, unless it was seen not to.

    Where it does not, pruning makes the model worse and nobody faster. The newest size that tells
    decides, because the time may have followed the size only down to some size. A time that has
    *risen* with a smaller size says that conditions change, and nothing about the size.
    """
    *earlier, now = history
    for older in reversed(earlier):
        large, small = sorted((older, now), key=lambda point: -point.retention)
        shares = [small.retention / large.retention]
        if large.flops != small.flops:  # equal FLOPs may not have been counted
            shares.append(small.flops / large.flops)
        # What fell less counts: layers that are cut first may have many parameters and compute
        # little.
        cut = 1 - max(shares)
        if cut < _CLEARLY_SMALLER:
            continue
        share = (large.update_time - small.update_time) / large.update_time / cut
        doubt = ERRORS_FOR_A_LINE * math.hypot(large.error, small.error) / large.update_time / cut
        if abs(share) < _NEGLIGIBLE and abs(share) + doubt < 1 / _STEEPEST_SLOPE:
            return False
        if share - doubt > _NEGLIGIBLE:
            return True
    return True


# The curve (lines 3, 4 and 9) -------------------------------------------------------------------


def plausible_retention(history: Sequence[Point], target: float, alpha: float) -> float:
    """γ_target, by the polynomial if that is plausible, else by a line, else by the first rule.

    A polynomial through noisy points can ask for the impossible: a change in the wrong direction,
    or a large change of size for a small gap in time.
    """
    now = history[-1]
    gap = (now.update_time - target) / now.update_time
    furthest = min(max(now.retention * (1 - _STEEPEST_SLOPE * gap), 0.0), _MOST_GROWTH)
    low, high = sorted((now.retention, furthest))
    points = distinct_points(history)
    clear = points_apart(points)
    newest = (clear if len(clear) > 1 else points)[-_MEMORY:]
    for used in (newest, newest[-2:]):
        if len(used) > 1 and low <= (wanted := target_retention(used, target)) <= high:
            return wanted
    # Line 9, solved for the retention, so that ρ_min and γ_min hold for a first pruning too.
    return now.retention * (1 - gap / alpha)
