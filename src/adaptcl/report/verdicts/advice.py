"""What to run or to read next, below a verdict: settings with values that follow from the runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from adaptcl.quantities import duration_unit
from adaptcl.records import TESTS, RoundRecord, end_s
from adaptcl.report.comparisons.comparison import Comparison, ComparisonRow
from adaptcl.report.saved_run import Run
from adaptcl.report.verdicts.ranking import counts, ended_before_baseline_got_there, gain_of
from adaptcl.strategies.dc_asgd import planned_rounds

_OF_ADAPTCL = "least_speed_up"
"""A setting that AdaptCL has, and strategies derived from it, but no other."""
_WHEN_BEHIND = "docs/runs.md, “When AdaptCL ends behind”"


def advice_on(parts: Sequence[Comparison]) -> list[str]:
    """Lines about all of these comparisons, each of which has one baseline."""
    short = [part for part in parts if any(_is_short(row, part) for row in part.rows)]
    return [*_give_equal_time(short), *_try_when_behind(parts)]


def _is_short(row: ComparisonRow, part: Comparison) -> bool:
    return ended_before_baseline_got_there(row, part.baselines[0])


def _give_equal_time(parts: Sequence[Comparison]) -> list[str]:
    """The settings with which all rows last as long as the baselines did."""
    if not parts:
        return []
    runs = [run for part in parts for row in part.rows for run in row.group.runs if run.rounds]
    ends = [end_s(run.rounds) for part in parts for run in part.baselines[0].group.runs]
    until = _floored(max(ends))
    rounds = max(rounds_until(run, until) for run in runs)
    unit = duration_unit(until)
    time = f"{until / unit.scale:g}{unit.unit.strip()}"
    others = sorted(
        {run.summary.stopped_by for run in runs if run.summary and run.summary.stopped_by}
        - {"max_virtual_time"}
    )
    without = f", and leave out {' and '.join(others)}" if others else ""
    return [
        f"For equal time give all --until {time} --rounds {rounds} (in Python "
        f'max_virtual_time="{time}", rounds={rounds}){without}.'
    ]


def _floored(seconds: float) -> float:
    """A time that reads well. Rounded up, it would give the longest run another round."""
    unit = duration_unit(seconds)
    step = unit.scale / 10.0**unit.digits
    return math.floor(seconds / step) * step


def rounds_until(run: Run, time_s: float) -> int:
    """The setting `rounds` with which a run lasts until a time, at its latest rounds' pace."""
    more = max(0.0, time_s - end_s(run.rounds)) / _shortest_late_round_s(run.rounds)
    share = (len(run.rounds) + math.ceil(more)) / planned_rounds(run.config)
    return math.ceil(share * int(run.config.get("rounds", planned_rounds(run.config))))


def _shortest_late_round_s(rounds: Sequence[RoundRecord]) -> float:
    ends = [0.0, *(each.virtual_time_s for each in rounds)][-TESTS - 1 :]
    return min((after - before for before, after in pairwise(ends) if after > before), default=1.0)


def _try_when_behind(parts: Sequence[Comparison]) -> list[str]:
    behind = any(
        _OF_ADAPTCL in row.group.first.config
        and gain_of(row) < 0
        and counts(row, part)
        and not row.is_baseline
        for part in parts
        for row in part.rows
    )
    return [f"What to try where AdaptCL is behind: {_WHEN_BEHIND}."] if behind else []
