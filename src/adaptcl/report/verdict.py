"""The sentence that ends every comparison: who was fastest to which accuracy, and by how much."""

from __future__ import annotations

from statistics import fmean

from adaptcl.report.comparison import Comparison, ComparisonRow
from adaptcl.report.wording import FACTOR, PERCENT, duration, short_duration


def verdict(comparison: Comparison) -> str:
    """One line; empty if there is nothing to compare."""
    baseline = comparison.baseline
    if baseline is None:
        return ""
    if comparison.target_accuracy is None:
        return f"No verdict yet: {baseline.group.label}, the baseline, is unfinished."
    reached = [row for row in comparison.rows if row.target_times_s]
    if not reached:
        nearest = max(comparison.rows, key=_late_accuracy)
        return (
            f"No run reached {_target(comparison, nearest)}; {nearest.group.label} came nearest, "
            f"with {PERCENT.write(_late_accuracy(nearest))}."
        )
    first, *others = sorted(reached, key=_rank)
    beginning = (
        f"{first.group.label} was fastest to {_target(comparison, first)}: "
        f"{duration(fmean(first.target_times_s))}"
    )
    if not first.is_baseline:
        return f"{beginning}, {_how_much_faster(first, baseline)}."
    rest = "nothing else reached it"
    if others:
        rest = f"{others[0].group.label} came next, {_how_much_faster(others[0], first)}"
    return f"{beginning}; {rest}{_ahead_at_equal_time(comparison)}."


def _ahead_at_equal_time(comparison: Comparison) -> str:
    """Who leads the baseline at equal time, perhaps because it ran no longer than that."""
    leading = [row for row in comparison.rows if row.gains and fmean(row.gains) > 0]
    if not leading or comparison.at_time_s is None:
        return ""
    row = max(leading, key=lambda each: fmean(each.gains))
    points = f"{100 * fmean(row.gains):.2f} points"
    when = short_duration(comparison.at_time_s)
    return f"; but at {when} {row.group.label} was {points} ahead"


def _rank(row: ComparisonRow) -> tuple[float, float]:
    """Whoever reached the target with more of its seeds comes first, then whoever was faster."""
    return -len(row.target_times_s) / len(row.outcomes), fmean(row.target_times_s)


def _late_accuracy(row: ComparisonRow) -> float:
    known = [each.late_accuracy for each in row.outcomes if each.late_accuracy is not None]
    return fmean(known) if known else 0.0


def _target(comparison: Comparison, subject: ComparisonRow) -> str:
    """The accuracy in words, as said of a row."""
    if comparison.asked_accuracy is not None:
        return comparison.target
    target = "its final accuracy" if subject.is_baseline else comparison.target
    return f"{target} of {PERCENT.write(comparison.target_accuracy)}"


def _how_much_faster(row: ComparisonRow, baseline: ComparisonRow) -> str:
    if not row.speed_ups:
        return f"which {baseline.group.label} never reached"
    return f"{FACTOR.write(row.speed_up)} as fast as {baseline.group.label}{_doubt(row)}"


def _doubt(row: ComparisonRow) -> str:
    """How sure a speed-up is."""
    seeds = len(row.outcomes)
    missed = f", reached with {len(row.target_times_s)} of {seeds} seeds"
    missed = missed if len(row.target_times_s) < seeds else ""
    bounds = row.speed_up_interval
    if bounds is None:
        return f" (one seed{missed})"
    low, high = (f"{each:.2f}" for each in bounds)
    luck = ", so it may be luck" if bounds[0] <= 1 <= bounds[1] else ""
    return f" (95 % interval {low} to {high} over {len(row.speed_ups)} seeds{missed}{luck})"
