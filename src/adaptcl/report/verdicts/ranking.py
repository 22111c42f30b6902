"""Who is ahead among rows with one baseline: first to the target, and best at equal time."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from adaptcl.records import end_s
from adaptcl.report.comparisons.comparison import Comparison, ComparisonRow
from adaptcl.report.comparisons.intervals import interval
from adaptcl.report.wording import FACTOR, PERCENT, metric_quantity
from adaptcl.training.objectives.metrics import Measure

_HARDLY = 0.02
"""An accuracy less than this share above chance, of all that is above it, is as good as chance."""


def first_to_target(comparison: Comparison) -> list[ComparisonRow]:
    """The rows that reached the target, in the order in which a verdict names them."""
    return sorted((row for row in comparison.rows if row.target_times_s), key=_rank)


def _rank(row: ComparisonRow) -> tuple[float, bool, float]:
    """Whoever reached the target with more of its seeds comes first; then whoever was faster than
    the baseline, beyond luck where several seeds tell; then whoever was faster."""
    bounds = row.speed_up_interval
    least = bounds[0] if bounds else row.speed_up or 0.0
    return -len(row.target_times_s) / len(row.outcomes), least <= 1, fmean(row.target_times_s)


def level_with_first(reached: Sequence[ComparisonRow]) -> list[ComparisonRow]:
    """The rows that read as fast as the first, with equally many of their seeds."""
    first, *others = reached
    return [row for row in others if _is_level(row, first)]


def _is_level(row: ComparisonRow, other: ComparisonRow) -> bool:
    if _rank(row)[0] != _rank(other)[0] or not (row.speed_ups and other.speed_ups):
        return False
    ratio = fmean(row.target_times_s) / fmean(other.target_times_s)
    return FACTOR.write(ratio) == FACTOR.write(1.0)


def best_at_equal_time(comparison: Comparison) -> ComparisonRow | None:
    """Who is furthest ahead of the baseline at equal time; None if nobody is."""
    leading = [row for row in comparison.rows if gain_of(row) > 0 and counts(row, comparison)]
    return max(leading, key=lambda each: (not may_be_luck(each), gain_of(each)), default=None)


def gain_of(row: ComparisonRow) -> float:
    """How much better than the baseline a row is at equal time, on average; 0 if unknown."""
    return fmean(row.gains) if row.gains else 0.0


def counts(row: ComparisonRow, comparison: Comparison) -> bool:
    """Whether the row's difference from the baseline at equal time reads as one."""
    return differs(gain_of(row), comparison)


def differs(gain: float, comparison: Comparison) -> bool:
    return points(gain, comparison) != points(0.0, comparison)


def points(gain: float, comparison: Comparison) -> str:
    """`10.81 points`, `0.51 in RMSE`: the size of a difference."""
    measure, size = comparison.measure, abs(gain)
    return f"{100 * size:.2f} points" if measure.in_percent else f"{size:.3g} in {measure.label}"


def may_be_luck(row: ComparisonRow) -> bool:
    """Whether the interval of its differences holds 0."""
    bounds = interval(row.gains)
    return bounds is not None and bounds[0] <= 0 <= bounds[1]


def ended_before_baseline_got_there(row: ComparisonRow, baseline: ComparisonRow) -> bool:
    """Whether a row missed the target, but ended before the baseline reached it.

    Rounds of a faster method are over sooner, so it may have had too few of them.
    """
    if row.target_times_s or not baseline.target_times_s:
        return False
    needed = fmean(baseline.target_times_s)
    return any(end_s(run.rounds) < needed for run in row.group.runs)


def why_times_say_nothing(comparison: Comparison) -> str:
    """Why times to the target tell nothing; empty if they do."""
    (baseline,) = comparison.baselines
    if baseline.target_times_s and all(each.at_first_test for each in baseline.outcomes):
        return f"was met at the first test of {baseline.group.label}"
    summaries = [run.summary for run in baseline.group.runs if run.summary]
    classes = max((len(each.accuracy_by_class) for each in summaries), default=0)
    target = comparison.target_value
    if comparison.measure.name != "accuracy" or not classes or target is None:
        return ""
    if all(_gives_one_class(each.accuracy_by_class) for each in summaries):
        return "is that of one class given for everything (are the inputs normalised?)"
    chance = 1 / classes
    if target > chance + _HARDLY * (1 - chance):
        return ""
    return f"is hardly better than chance, {PERCENT.write(chance)} of {classes} classes"


def _gives_one_class(accuracies: Sequence[float | None]) -> bool:
    """Whether a model is right about one class alone, and about that always."""
    known = [each for each in accuracies if each is not None]
    return len(known) > 1 and sorted(known) == [0.0] * (len(known) - 1) + [1.0]


def why_no_target(comparison: Comparison) -> str:
    """Why the baseline has no value to compare with; empty if it has one."""
    (baseline,) = comparison.baselines
    if comparison.target_value is not None:
        return ""
    is_finished = all(run.summary for run in baseline.group.runs)
    state = "has no test" if is_finished else "is unfinished"
    return f"{baseline.group.label}, the baseline, {state}"


def late_value(row: ComparisonRow, measure: Measure) -> float:
    """What the row ends with, the mean over its runs; the worst value if it has no test."""
    known = [each.late_value for each in row.outcomes if each.late_value is not None]
    return fmean(known) if known else measure.worst


def written(value: float | None, measure: Measure) -> str:
    return metric_quantity(measure, value).write(value)
