"""The sentence that ends every comparison: who was fastest to which result, and by how much."""

from __future__ import annotations

from statistics import fmean

from adaptcl.quantities import duration
from adaptcl.records import TESTS
from adaptcl.report.comparison import Comparison, ComparisonRow
from adaptcl.report.intervals import interval
from adaptcl.report.wording import FACTOR, PERCENT, metric_quantity
from adaptcl.training.objectives.metrics import Measure

_HARDLY = 0.02
"""An accuracy less than this share above chance, of all that is above it, is as good as chance."""


def verdict(comparison: Comparison) -> str:
    """One line, with a sentence for each baseline; empty if there is nothing to compare."""
    parts = (part for part in comparison.by_baseline() if len(part.rows) > 1)
    return " ".join(map(_sentence, parts))


def _sentence(comparison: Comparison) -> str:
    (baseline,) = comparison.baselines
    if comparison.target_value is None:
        is_finished = all(run.summary for run in baseline.group.runs)
        why = "has no test" if is_finished else "is unfinished"
        return f"No verdict yet: {baseline.group.label}, the baseline, {why}."
    reached = sorted((row for row in comparison.rows if row.target_times_s), key=_rank)
    if not reached:
        measure = comparison.measure
        nearest = max(comparison.rows, key=lambda row: measure.gain(_late_value(row, measure), 0.0))
        return (
            f"No run reached {_target(comparison, nearest)}; {nearest.group.label} came nearest, "
            f"with {_written(_late_value(nearest, measure), measure)}."
        )
    leader = _leader_at_equal_time(comparison)
    if reason := _says_nothing(comparison, baseline):
        ahead = f" {_ahead(comparison, leader, baseline)}." if leader else ""
        return f"Who is faster cannot be told: {_target(comparison)} {reason}.{ahead}"
    first, *others = reached
    when = duration(fmean(first.target_times_s))
    level = [row for row in others if _is_level(row, first)]
    if level:
        names = " and ".join(row.group.label for row in (first, *level))
        beginning = f"{names} are level to {_target(comparison)}: {when}"
    else:
        beginning = f"{first.group.label} was fastest to {_target(comparison, first)}: {when}"
    if baseline not in (first, *level):
        faster = _how_much_faster(first, baseline)
        return f"{beginning}, {faster}{_at_equal_time(comparison, first, leader)}."
    if level:
        ahead = f" {_ahead(comparison, leader, baseline)}." if leader else ""
        return f"{beginning}.{ahead}"
    if leader is not None:
        return _ahead_but_short(comparison, leader, first)
    rest = "nothing else reached it"
    if others:
        rest = f"{others[0].group.label} came next, {_how_much_faster(others[0], baseline)}"
    return f"{beginning}; {rest}."


def _says_nothing(comparison: Comparison, baseline: ComparisonRow) -> str:
    """Why times to the target tell nothing; empty if they do."""
    if baseline.target_times_s and all(each.at_first_test for each in baseline.outcomes):
        return f"was met at the first test of {baseline.group.label}"
    summaries = [run.summary for run in baseline.group.runs if run.summary]
    classes = max((len(each.accuracy_by_class) for each in summaries), default=0)
    target = comparison.target_value
    if comparison.measure.name != "accuracy" or not classes or target is None:
        return ""
    chance = 1 / classes
    if target > chance + _HARDLY * (1 - chance):
        return ""
    return f"is hardly better than chance, {PERCENT.write(chance)} of {classes} classes"


def _is_level(row: ComparisonRow, other: ComparisonRow) -> bool:
    """Whether two rows read equally fast, with equally many of their seeds."""
    if _rank(row)[0] != _rank(other)[0] or not (row.speed_ups and other.speed_ups):
        return False
    ratio = fmean(row.target_times_s) / fmean(other.target_times_s)
    return FACTOR.write(ratio) == FACTOR.write(1.0)


def _at_equal_time(comparison: Comparison, row: ComparisonRow, leader: ComparisonRow | None) -> str:
    """How far a row is ahead of the baseline at equal time, or behind it; and who is best then."""
    if not row.gains:
        return ""
    gain = fmean(row.gains)
    where = "ahead of it" if gain >= 0 else "behind it"
    points = _points(gain, comparison)
    said = f"{points} {where}{_luck(row)}" if _counts(gain, comparison) else "level with it"
    more = fmean(leader.gains) - gain if leader else 0.0
    if leader is not None and more > 0 and _counts(more, comparison):
        best = _points(fmean(leader.gains), comparison)
        said += f", and {leader.group.label} is best there, {best} ahead{_luck(leader)}"
    return f"; at {comparison.when} {said}"


def _leader_at_equal_time(comparison: Comparison) -> ComparisonRow | None:
    """Who is furthest ahead of the baseline at equal time; None if nobody is."""
    leading = [
        row
        for row in comparison.rows
        if row.gains and fmean(row.gains) > 0 and _counts(fmean(row.gains), comparison)
    ]
    return max(leading, key=lambda each: (not _luck(each), fmean(each.gains)), default=None)


def _ahead(comparison: Comparison, row: ComparisonRow, baseline: ComparisonRow) -> str:
    return (
        f"At {comparison.when} {row.group.label} is "
        f"{_points(fmean(row.gains), comparison)} ahead of {baseline.group.label}{_luck(row)}"
    )


def _ahead_but_short(comparison: Comparison, row: ComparisonRow, baseline: ComparisonRow) -> str:
    """About a method that is ahead, but did not come to the target with all of its seeds."""
    ahead = _ahead(comparison, row, baseline)
    if row.target_times_s:
        return f"{ahead}, and {_how_much_faster(row, baseline)} to {_target(comparison, row)}."
    needed = fmean(baseline.target_times_s)
    missed = (
        f"{ahead}. It did not reach {_target(comparison, row)}, for which {baseline.group.label} "
        f"took {duration(needed)}"
    )
    if all(run.rounds[-1].virtual_time_s >= needed for run in row.group.runs):
        return f"{missed}."
    return f"{missed}: give both the same time (max_virtual_time) and rounds enough."


def _luck(row: ComparisonRow) -> str:
    bounds = interval(row.gains)
    return ", which may be luck" if bounds and bounds[0] <= 0 <= bounds[1] else ""


def _points(gain: float, comparison: Comparison) -> str:
    measure, size = comparison.measure, abs(gain)
    return f"{100 * size:.2f} points" if measure.in_percent else f"{size:.3g} in {measure.label}"


def _counts(gain: float, comparison: Comparison) -> bool:
    """Whether a difference reads as one."""
    return _points(gain, comparison) != _points(0.0, comparison)


def _rank(row: ComparisonRow) -> tuple[float, bool, float]:
    """Whoever reached the target with more of its seeds comes first; then whoever was faster than
    the baseline, beyond luck where several seeds tell; then whoever was faster."""
    bounds = row.speed_up_interval
    least = bounds[0] if bounds else row.speed_up or 0.0
    return -len(row.target_times_s) / len(row.outcomes), least <= 1, fmean(row.target_times_s)


def _late_value(row: ComparisonRow, measure: Measure) -> float:
    known = [each.late_value for each in row.outcomes if each.late_value is not None]
    return fmean(known) if known else measure.worst


def _written(value: float | None, measure: Measure) -> str:
    return metric_quantity(measure, value).write(value)


def _target(comparison: Comparison, subject: ComparisonRow | None = None) -> str:
    """The target in words, as said of a row."""
    if comparison.asked_value is not None:
        return comparison.target
    measure = comparison.measure
    whose = "its" if subject and subject.is_baseline else f"{comparison.reference}'s"
    value = _written(comparison.target_value, measure)
    return f"{whose} final {measure.label} of {value} (mean of its last {TESTS} tests)"


def _how_much_faster(row: ComparisonRow, baseline: ComparisonRow) -> str:
    if not row.speed_ups:
        if not baseline.target_times_s:
            return f"which {baseline.group.label} never reached"
        return f"with seeds with which {baseline.group.label} did not reach it"
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
