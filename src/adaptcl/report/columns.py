"""The columns of the table of a comparison: their headings, and what stands in the cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from adaptcl.errors import SettingError
from adaptcl.quantities import ABSENT, Quantity, duration, duration_unit, short_duration, volume
from adaptcl.records import TESTS
from adaptcl.report.comparisons.comparison import Comparison, ComparisonRow
from adaptcl.report.comparisons.intervals import interval
from adaptcl.report.comparisons.participation import gone_at_the_end
from adaptcl.report.saved_run import Run, clock_of
from adaptcl.report.verdicts.notes import ahead, are_paired
from adaptcl.report.wording import (
    FACTOR,
    HETEROGENEITY,
    PERCENT,
    ROUNDS,
    metric_quantity,
    metric_span,
    number_of,
)
from adaptcl.strategies.dc_asgd import planned_rounds
from adaptcl.training.objectives.metrics import Measure

Column = tuple[str, Callable[[ComparisonRow], str]]  # a heading, and what stands below it


def paper_columns(comparison: Comparison) -> list[Column]:
    """Those that fit on a page: what is compared, without what else is known of the runs."""
    columns = columns_of(comparison)
    headings = [heading for heading, _ in columns]
    return columns[: headings.index("speed-up") + 1] if comparison.baselines else columns


def named_columns(comparison: Comparison, beginnings: str) -> list[Column]:
    """The first column and those whose headings begin so, in this order, with commas between."""
    first, *others = columns_of(comparison)
    chosen = [first]
    for word in filter(None, map(str.strip, beginnings.split(","))):
        found = [each for each in others if each[0].lower().startswith(word.lower())]
        if not found:
            there = "; ".join(heading for heading, _ in others)
            raise SettingError(f"No column begins with {word!r}; there are {there}.")
        chosen += [each for each in found if each not in chosen]
    return chosen


def gain_text(gains: Sequence[float], *, in_points: bool = True) -> str:
    """`+1.20 (-0.35 to +2.75)`: a mean difference, of shares in points, and its 95 % interval."""
    if not gains:
        return ABSENT
    scaled = [100 * each for each in gains] if in_points else list(gains)
    form = "+.2f" if in_points else "+.3g"
    return f"{fmean(scaled):{form}}{_interval_text(interval(scaled), form)}"


def _interval_text(bounds: tuple[float, float] | None, form: str) -> str:
    return "" if bounds is None else f" ({bounds[0]:{form}} to {bounds[1]:{form}})"


def columns_of(comparison: Comparison) -> list[Column]:
    """All columns that tell something of these runs."""
    clock, measure = clock_of(comparison.runs), comparison.measure
    columns: list[Column] = [
        ("run", _label),
        (
            f"{measure.label} (mean of last {TESTS} tests)",
            lambda row: _metric(measure, [o.late_value for o in row.outcomes]),
        ),
        *_equal_time_columns(comparison),
        (clock, lambda row: duration(*row.numbers("virtual_time_s"))),
        ("parameters saved", lambda row: PERCENT.write(*row.numbers("params_saved"))),
        ("FLOPs saved", lambda row: PERCENT.write(*row.numbers("flops_saved"))),
        ("H before → after", _heterogeneity),
        ("bytes moved", lambda row: volume(*row.numbers("bytes_moved"))),
    ]
    if len({run.summary.rounds for run in comparison.runs if run.summary}) > 1:
        place = [heading for heading, _ in columns].index(clock) + 1
        columns.insert(place, ("rounds", lambda row: ROUNDS.write(*row.numbers("rounds"))))
    if any(map(_worker_values, comparison.rows)):
        columns.insert(
            2, (f"{measure.label} by worker", lambda row: metric_span(measure, _worker_values(row)))
        )
    if _have_unequal_data(comparison.runs):
        columns += [
            (
                "worst class (last test)",
                lambda row: PERCENT.write(*row.numbers("worst_class_accuracy")),
            ),
            (
                "least worker (last test)",
                lambda row: PERCENT.write(*row.numbers("least_worker_accuracy")),
            ),
        ]
    return columns


def _equal_time_columns(comparison: Comparison) -> list[Column]:
    """None if there is no baseline."""
    if not comparison.baselines:
        return []
    when, measure = comparison.when, comparison.measure
    columns: list[Column] = [
        (f"{measure.label} at {when}", _at_time(comparison)),
        (f"time to {comparison.target}", _time_to_target),
        ("speed-up", _speed_up),
    ]
    if are_paired(comparison.rows):
        points = measure.in_percent
        what = "points" if points else measure.label
        columns.insert(
            1,
            (
                f"{what} {ahead(measure)} {comparison.reference} at {when}",
                lambda row: ABSENT if row.is_baseline else gain_text(row.gains, in_points=points),
            ),
        )
    return columns


def _metric(measure: Measure, values: Sequence[float | None]) -> str:
    return metric_quantity(measure, *values).write(*values)


def _at_time(comparison: Comparison) -> Callable[[ComparisonRow], str]:
    """The value of a row at equal time, and which time that is if the heading does not say."""

    def written(row: ComparisonRow) -> str:
        values = [each.value_at_time for each in row.outcomes]
        text = _in_some(row, metric_quantity(comparison.measure, *values), values)
        if comparison.at_time_s is not None or row.at_time_s is None:
            return text
        return f"{text} at {short_duration(row.at_time_s)}"

    return written


def _worker_values(row: ComparisonRow) -> list[float]:
    """The main metric of each worker that tested to the end, as the mean of its last tests."""
    values = []
    for run in row.group.runs:
        tests: dict[int, list[float]] = {}
        gone = gone_at_the_end(run)
        for record in run.rounds:
            for worker, value in record.worker_values.items():
                tests.setdefault(worker, []).append(value)
        values += [fmean(each[-TESTS:]) for worker, each in tests.items() if worker not in gone]
    return values


def _speed_up(row: ComparisonRow) -> str:
    if row.reached_by and not row.speed_ups:
        return f"{row.reached_by} reach it"
    bounds = None if row.is_baseline else row.speed_up_interval
    return FACTOR.write(row.speed_up) + _interval_text(bounds, ".2f")


def _time_to_target(row: ComparisonRow) -> str:
    times = row.target_times_s
    return _in_some(row, duration_unit(*times), [o.target_time_s for o in row.outcomes])


def _in_some(row: ComparisonRow, quantity: Quantity, values: Sequence[float | None]) -> str:
    """The mean of the known values, and how many runs have one if not all do."""
    known = [each for each in values if each is not None]
    text = quantity.write(*known)
    if not known or len(known) == len(values):
        return text
    return f"{text} in {len(known)} of {len(row.outcomes)} runs"


def _heterogeneity(row: ComparisonRow) -> str:
    before = HETEROGENEITY.write(*row.numbers("heterogeneity_first"))
    after = HETEROGENEITY.write(*row.numbers("heterogeneity_last"))
    return before if before == ABSENT else f"{before} → {after}"


def _have_unequal_data(runs: Sequence[Run]) -> bool:
    """Whether a run dealt classes unequally and recorded the accuracy of each class."""
    unequal = [run.summary for run in runs if run.config.get("partition", "iid") != "iid"]
    return any(summary is not None and summary.accuracy_by_class for summary in unequal)


def _label(row: ComparisonRow) -> str:
    label, (first, *others) = row.group.label, row.group.runs
    if others:
        return f"{label}, {len(row.outcomes)} runs"
    planned, done = number_of(planned_rounds(first.config), "round"), row.numbers("rounds")[0]
    return label if first.summary else f"{label}, {done or 0} of {planned}"
