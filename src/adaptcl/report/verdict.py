"""The sentence that ends every comparison: who was fastest to which result, and by how much."""

from __future__ import annotations

from statistics import fmean

from adaptcl.records import TESTS
from adaptcl.report.comparison import Comparison, ComparisonRow, interval
from adaptcl.report.wording import FACTOR, duration, metric_quantity
from adaptcl.training.objectives.metrics import Measure


def verdict(comparison: Comparison) -> str:
    """One line, with a sentence for each baseline; empty if there is nothing to compare."""
    return " ".join(map(_sentence, comparison.by_baseline())) if len(comparison.rows) > 1 else ""


def _sentence(comparison: Comparison) -> str:
    (baseline,) = comparison.baselines
    if comparison.target_value is None:
        return f"No verdict yet: {baseline.group.label}, the baseline, is unfinished."
    reached = [row for row in comparison.rows if row.target_times_s]
    if not reached:
        measure = comparison.measure
        nearest = max(comparison.rows, key=lambda row: measure.gain(_late_value(row, measure), 0.0))
        return (
            f"No run reached {_target(comparison, nearest)}; {nearest.group.label} came nearest, "
            f"with {_written(_late_value(nearest, measure), measure)}."
        )
    first, *others = sorted(reached, key=_rank)
    leader = _leader_at_equal_time(comparison)
    if first.is_baseline and leader is not None:
        return _ahead_but_short(comparison, leader, first)
    beginning = (
        f"{first.group.label} was fastest to {_target(comparison, first)}: "
        f"{duration(fmean(first.target_times_s))}"
    )
    if not first.is_baseline:
        faster = _how_much_faster(first, baseline)
        return f"{beginning}, {faster}{_at_equal_time(comparison, first)}."
    rest = "nothing else reached it"
    if others:
        rest = f"{others[0].group.label} came next, {_how_much_faster(others[0], first)}"
    return f"{beginning}; {rest}."


def _at_equal_time(comparison: Comparison, row: ComparisonRow) -> str:
    """How far a row is ahead of the baseline at equal time, or behind it."""
    if not row.gains:
        return ""
    gain = fmean(row.gains)
    where = "ahead of it" if gain >= 0 else "behind it"
    points = f"{_points(gain, comparison)} {where}{_luck(row)}"
    return f"; at {comparison.when} {points}"


def _leader_at_equal_time(comparison: Comparison) -> ComparisonRow | None:
    """Who is furthest ahead of the baseline at equal time; None if nobody is."""
    leading = [row for row in comparison.rows if row.gains and fmean(row.gains) > 0]
    return max(leading, key=lambda each: fmean(each.gains), default=None)


def _ahead_but_short(comparison: Comparison, row: ComparisonRow, baseline: ComparisonRow) -> str:
    """About a method that is ahead, but did not come to the target with all of its seeds."""
    ahead = (
        f"At {comparison.when} {row.group.label} is "
        f"{_points(fmean(row.gains), comparison)} ahead of {baseline.group.label}{_luck(row)}"
    )
    if row.target_times_s:
        return f"{ahead}, and {_how_much_faster(row, baseline)} to {_target(comparison, row)}."
    needed = fmean(baseline.target_times_s)
    missed = (
        f"{ahead}. It did not reach {_target(comparison, row)}, for which {baseline.group.label} "
        f"took {duration(needed)}"
    )
    if all(run.rounds[-1].virtual_time_s >= needed for run in row.group.runs):
        return f"{missed}."
    return f"{missed}: give both the same time (`max_virtual_time`) and rounds enough."


def _luck(row: ComparisonRow) -> str:
    bounds = interval(row.gains)
    return ", which may be luck" if bounds and bounds[0] <= 0 <= bounds[1] else ""


def _points(gain: float, comparison: Comparison) -> str:
    measure, size = comparison.measure, abs(gain)
    return f"{100 * size:.2f} points" if measure.in_percent else f"{size:.3g} in {measure.label}"


def _rank(row: ComparisonRow) -> tuple[float, float]:
    """Whoever reached the target with more of its seeds comes first, then whoever was faster."""
    return -len(row.target_times_s) / len(row.outcomes), fmean(row.target_times_s)


def _late_value(row: ComparisonRow, measure: Measure) -> float:
    known = [each.late_value for each in row.outcomes if each.late_value is not None]
    return fmean(known) if known else measure.worst


def _written(value: float | None, measure: Measure) -> str:
    return metric_quantity(measure, value).write(value)


def _target(comparison: Comparison, subject: ComparisonRow) -> str:
    """The target in words, as said of a row."""
    if comparison.asked_value is not None:
        return comparison.target
    measure = comparison.measure
    whose = "its" if subject.is_baseline else f"{comparison.reference}'s"
    value = _written(comparison.target_value, measure)
    return f"{whose} final {measure.label} of {value} (mean of its last {TESTS} tests)"


def _how_much_faster(row: ComparisonRow, baseline: ComparisonRow) -> str:
    if not row.speed_ups:
        return f"which {baseline.group.label} never reached"
    return f"{FACTOR.write(row.speed_up)} as fast as {baseline.group.label}{_doubt(row)}"


def _doubt(row: ComparisonRow) -> str:
    seeds = len(row.outcomes)
    missed = f", reached with {len(row.target_times_s)} of {seeds} seeds"
    missed = missed if len(row.target_times_s) < seeds else ""
    bounds = row.speed_up_interval
    if bounds is None:
        return f" (one seed{missed})"
    low, high = (f"{each:.2f}" for each in bounds)
    luck = ", so it may be luck" if bounds[0] <= 1 <= bounds[1] else ""
    return f" (95 % interval {low} to {high} over {len(row.speed_ups)} seeds{missed}{luck})"
