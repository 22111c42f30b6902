"""The verdict of a sweep over conditions: one short line for each, and what the lines mean."""

from __future__ import annotations

from collections.abc import Sequence

from adaptcl.records import TESTS
from adaptcl.report.comparisons.comparison import Comparison, ComparisonRow
from adaptcl.report.comparisons.conditions import named_by_condition
from adaptcl.report.comparisons.labels import label_in_common
from adaptcl.report.verdicts.ranking import (
    best_at_equal_time,
    counts,
    first_to_target,
    gain_of,
    level_with_first,
    may_be_luck,
    points,
    why_no_target,
    why_times_say_nothing,
    written,
)
from adaptcl.report.wording import FACTOR


def lines_by_condition(parts: Sequence[Comparison]) -> list[str]:
    """A line for each part, which has a baseline of its own; empty if there is no part."""
    if not parts:
        return []
    lines = [f"{condition}: {_line(part)}" for condition, part in named_by_condition(parts)]
    return [*lines, _meaning(parts)]


def _line(part: Comparison) -> str:
    if why := why_no_target(part):
        return f"no verdict yet, {why}"
    return f"{_at_equal_time(part)}; {_to_target(part)}"


def _at_equal_time(part: Comparison) -> str:
    others = [row for row in part.rows if row.gains and not row.is_baseline]
    best = best_at_equal_time(part) or max(others, key=gain_of, default=None)
    if best is None:
        return f"nothing to compare at {part.when}"
    if not counts(best, part):
        return f"{best.group.label} level at {part.when}"
    doubts = ["early"] * _is_early(best, part) + ["may be luck"] * may_be_luck(best)
    doubt = f" ({', '.join(doubts)})" if doubts else ""
    return f"{best.group.label} {_signed(gain_of(best), part)} at {part.when}{doubt}"


def _is_early(row: ComparisonRow, part: Comparison) -> bool:
    return any(each.early_tests is not None for each in (row, *part.baselines))


def _signed(gain: float, part: Comparison) -> str:
    size = points(gain, part)
    if part.measure.in_percent:
        return f"{'+' if gain > 0 else '−'}{size}"
    return f"{size} {'better' if gain > 0 else 'worse'}"


def _to_target(part: Comparison) -> str:
    (baseline,) = part.baselines
    value = written(part.target_value, part.measure)
    if why_times_say_nothing(part):
        return f"times to {value} tell nothing"
    reached = first_to_target(part)
    if not reached:
        return f"nobody reached {value}"
    first, *others = reached
    if level := level_with_first(reached):
        return f"{' and '.join(row.group.label for row in (first, *level))} level to {value}"
    if first is not baseline:
        return f"{first.group.label} {_speed_up(first)} to {value}"
    if others:
        return (
            f"{first.group.label} first to {value}, {others[0].group.label} next{_some(others[0])}"
        )
    return f"only {first.group.label} reached {value}"


def _speed_up(row: ComparisonRow) -> str:
    if row.speed_up is None:
        return f"first{_some(row)}" if row.reached_by else "alone"
    bounds = row.speed_up_interval
    within = f" ({bounds[0]:.2f} to {bounds[1]:.2f})" if bounds else ""
    return f"{FACTOR.write(row.speed_up)}{within} as fast"


def _some(row: ComparisonRow) -> str:
    return f" with {row.reached_by} seeds only" if row.reached_by else ""


def _meaning(parts: Sequence[Comparison]) -> str:
    first = parts[0]
    reference = label_in_common([part.baselines[0].group.label for part in parts])
    measure = first.measure
    seeds = max(len(row.outcomes) for part in parts for row in part.rows)
    target = f"{reference}'s final {measure.label} (mean of its last {TESTS} tests)"
    if first.asked_value is not None:
        target = first.target
    sure = "one seed" if seeds == 1 else "95 % intervals over seeds"
    early = any(_is_early(row, part) for part in parts for row in part.rows)
    few = f"; early: a row had fewer than {TESTS} tests by then" * early
    return f"Each is compared with its own {reference}, at equal time and to {target}; {sure}{few}."
