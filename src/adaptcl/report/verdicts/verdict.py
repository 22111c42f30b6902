"""The words that end every comparison: who was fastest to which result, and by how much.

Under one condition that is a sentence. Under several (`by_condition.py`) it is a line for
each. What to run or to try next (`advice.py`) comes last, once.
"""

from __future__ import annotations

from statistics import fmean

from adaptcl.quantities import duration
from adaptcl.records import TESTS
from adaptcl.report.comparisons.comparison import Comparison, ComparisonRow
from adaptcl.report.verdicts.advice import advice_on
from adaptcl.report.verdicts.by_condition import lines_by_condition
from adaptcl.report.verdicts.ranking import (
    best_at_equal_time,
    counts,
    differs,
    first_to_target,
    gain_of,
    late_value,
    level_with_first,
    may_be_luck,
    points,
    why_no_target,
    why_times_say_nothing,
    written,
)
from adaptcl.report.wording import FACTOR


def verdict(comparison: Comparison) -> str:
    """All lines; empty if there is nothing to compare."""
    return "\n".join([*findings(comparison), *advice(comparison)])


def findings(comparison: Comparison) -> list[str]:
    """A sentence, or a line for each condition."""
    parts = _compared(comparison)
    return [_sentence(parts[0])] if len(parts) == 1 else lines_by_condition(parts)


def advice(comparison: Comparison) -> list[str]:
    """What to run or to read next, if the runs call for it."""
    return advice_on(_compared(comparison))


def _compared(comparison: Comparison) -> list[Comparison]:
    return [part for part in comparison.by_baseline() if len(part.rows) > 1]


def _sentence(comparison: Comparison) -> str:
    (baseline,) = comparison.baselines
    if why := why_no_target(comparison):
        return f"No verdict yet: {why}."
    reached = first_to_target(comparison)
    if not reached:
        return _nobody_reached_it(comparison)
    leader = best_at_equal_time(comparison)
    if reason := why_times_say_nothing(comparison):
        ahead = f" {_ahead(comparison, leader, baseline)}." if leader else ""
        return f"Who is faster cannot be told: {_target(comparison)} {reason}.{ahead}"
    first, *others = reached
    level = level_with_first(reached)
    when = duration(fmean(first.target_times_s))
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


def _nobody_reached_it(comparison: Comparison) -> str:
    measure = comparison.measure
    nearest = max(comparison.rows, key=lambda row: measure.gain(late_value(row, measure), 0.0))
    value = written(late_value(nearest, measure), measure)
    said = (
        f"No run reached {_target(comparison, nearest)}; {nearest.group.label} came nearest, "
        f"with {value}"
    )
    goals = {run.target for run in nearest.group.runs if run.ended_by_target}
    if len(goals) != 1:
        return f"{said}."
    goal = written(goals.pop(), measure)
    return f"{said}, and was to end there: its own target was {goal}."


def _at_equal_time(comparison: Comparison, row: ComparisonRow, leader: ComparisonRow | None) -> str:
    """How far a row is ahead of the baseline at equal time, or behind it; and who is best then."""
    if not row.gains:
        return ""
    where = "ahead of it" if gain_of(row) >= 0 else "behind it"
    said = "level with it"
    if counts(row, comparison):
        said = f"{points(gain_of(row), comparison)} {where}{_luck(row)}"
    more = gain_of(leader) - gain_of(row) if leader else 0.0
    if leader is not None and more > 0 and differs(more, comparison):
        best = points(gain_of(leader), comparison)
        said += f", and {leader.group.label} is best there, {best} ahead{_luck(leader)}"
    return f"; at {comparison.when} {said}"


def _ahead(comparison: Comparison, row: ComparisonRow, baseline: ComparisonRow) -> str:
    return (
        f"At {comparison.when} {row.group.label} is "
        f"{points(gain_of(row), comparison)} ahead of {baseline.group.label}{_luck(row)}"
    )


def _ahead_but_short(comparison: Comparison, row: ComparisonRow, baseline: ComparisonRow) -> str:
    """About a method that is ahead, but did not come to the target with all of its seeds."""
    ahead = _ahead(comparison, row, baseline)
    if row.reached_by and not row.speed_ups:
        return f"{ahead}, but reached {_target(comparison, row)} with {row.reached_by} seeds only."
    if row.target_times_s:
        return f"{ahead}, and {_how_much_faster(row, baseline)} to {_target(comparison, row)}."
    return (
        f"{ahead}. It did not reach {_target(comparison, row)}, for which {baseline.group.label} "
        f"took {duration(fmean(baseline.target_times_s))}."
    )


def _luck(row: ComparisonRow) -> str:
    return ", which may be luck" if may_be_luck(row) else ""


def _target(comparison: Comparison, subject: ComparisonRow | None = None) -> str:
    """The target in words, as said of a row."""
    if comparison.asked_value is not None:
        return comparison.target
    measure = comparison.measure
    whose = "its" if subject and subject.is_baseline else f"{comparison.reference}'s"
    value = written(comparison.target_value, measure)
    return f"{whose} final {measure.label} of {value} (mean of its last {TESTS} tests)"


def _how_much_faster(row: ComparisonRow, baseline: ComparisonRow) -> str:
    if not row.speed_ups:
        if row.reached_by:
            return f"with {row.reached_by} seeds only"
        if not baseline.target_times_s:
            return f"which {baseline.group.label} never reached"
        return f"with seeds with which {baseline.group.label} did not reach it"
    return f"{FACTOR.write(row.speed_up)} as fast as {baseline.group.label}{_doubt(row)}"


def _doubt(row: ComparisonRow) -> str:
    bounds = row.speed_up_interval
    if bounds is None:
        return " (one seed)"
    low, high = (f"{each:.2f}" for each in bounds)
    luck = ", so it may be luck" if bounds[0] <= 1 <= bounds[1] else ""
    return f" (95 % interval {low} to {high} over {len(row.speed_ups)} seeds{luck})"
