"""Runs side by side: one row a run, or one row for all runs that differ only in their seed.

A terminal too narrow for such rows gets the table upright: one row a quantity, one column a run,
and as many tables below each other as it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from adaptcl.engines.forecast import Forecast
from adaptcl.records import first_and_last_heterogeneity
from adaptcl.report.comparison import BASELINE_STRATEGY, ComparisonRow, rows
from adaptcl.report.labels import distinct_labels, unequal
from adaptcl.report.runs import Run, clock_of
from adaptcl.report.wording import (
    ABSENT,
    FACTOR,
    HETEROGENEITY,
    PERCENT,
    duration,
    duration_measure,
    gain,
    number_of,
    volume,
)

_TIME = "virtual time"
COLUMNS = (
    "run",
    "accuracy",
    "best accuracy",
    _TIME,
    "speed-up",
    "parameters saved",
    "FLOPs saved",
    "H before → after",
    "bytes moved",
)
_OF_UNEQUAL = ("worst class", "least worker")
"""Further columns for runs whose workers have different classes: who is left behind."""
_BOUNDLESS = 10_000
"""A width in columns that no table needs."""


@dataclass(frozen=True)
class Comparison:
    """A comparison that takes the form its terminal has room for."""

    headings: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    notes: Sequence[str]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        boundless = options.update(width=_BOUNDLESS)

        def fits(table: Table) -> bool:
            return Measurement.get(console, boundless, table).maximum <= options.max_width

        wide = _wide(self.headings, self.rows)
        yield from [wide] if fits(wide) else _stacked(self.headings, self.rows, fits)
        yield from map(Text, self.notes)


def comparison(
    runs: Sequence[Run], *, over_seeds: bool = False, target_accuracy: float | None = None
) -> Comparison:
    """The comparison for the terminal; with a target, a fraction, also when it was reached."""
    told = rows(runs, over_seeds=over_seeds, target_accuracy=target_accuracy)
    headings, cells = _headings(runs, target_accuracy), [_cells(r, target_accuracy) for r in told]
    if _are_unequal(runs):
        headings = (*headings, *_OF_UNEQUAL)
        cells = [(*each, *_unequal_cells(row)) for each, row in zip(cells, told, strict=True)]
    if over_seeds and _are_paired(told):
        held = next(row.against for row in told if row.against)
        headings = (*headings, f"points above {held}")
        cells = [(*each, gain(*row.gains)) for each, row in zip(cells, told, strict=True)]
    return Comparison(headings, cells, _notes(runs, told, over_seeds))


def comparison_markdown(
    runs: Sequence[Run], *, over_seeds: bool = False, target_accuracy: float | None = None
) -> str:
    """The comparison as a Markdown table, followed by notes where numbers need a word."""
    table = comparison(runs, over_seeds=over_seeds, target_accuracy=target_accuracy)
    rule = [":--", *("--:" for _ in table.headings[1:])]
    lines = [
        "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
        for row in (table.headings, rule, *table.rows)
    ]
    for note in table.notes:
        lines += ["", note]
    return "\n".join(lines) + "\n"


def _headings(runs: Sequence[Run], target_accuracy: float | None) -> tuple[str, ...]:
    """The columns, with the time called by the clock that it is of."""
    clock = clock_of(runs)
    names = [clock if name == _TIME else name for name in COLUMNS]
    if target_accuracy is not None:
        names.append(f"{clock} to {100 * target_accuracy:g} %")
    return tuple(names)


def _wide(headings: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Table:
    table = Table()
    for name in headings:
        table.add_column(name, justify="left" if name == headings[0] else "right")
    for cells in rows:
        table.add_row(*map(Text, cells))
    return table


def _upright(headings: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Table:
    table = Table()
    table.add_column(headings[0])
    for label, *_ in rows:
        table.add_column(Text(label), justify="right")
    for place, name in enumerate(headings[1:], start=1):
        table.add_row(name, *(Text(cells[place]) for cells in rows))
    return table


def _stacked(
    headings: tuple[str, ...], rows: Sequence[tuple[str, ...]], fits: Callable[[Table], bool]
) -> list[Table]:
    """Upright tables, each of as many runs as fit, and of one at least."""
    tables: list[Table] = []
    first = 0
    while first < len(rows):
        last = first + 1
        while last < len(rows) and fits(_upright(headings, rows[first : last + 1])):
            last += 1
        tables.append(_upright(headings, rows[first:last]))
        first = last
    return tables


def _cells(row: ComparisonRow, target_accuracy: float | None) -> tuple[str, ...]:
    each = row.outcomes
    best_time = duration(*(o.best_time_s for o in each))
    best = PERCENT.write(*(o.best_accuracy for o in each))
    before = HETEROGENEITY.write(*(o.heterogeneity_first for o in each))
    after = HETEROGENEITY.write(*(o.heterogeneity_last for o in each))
    cells = [
        _label(row),
        PERCENT.write(*(o.accuracy for o in each)),
        best if best == ABSENT else f"{best} at {best_time}",
        duration(*(o.time_s for o in each)),
        FACTOR.write(*row.speed_ups),
        PERCENT.write(*(o.params_saved for o in each)),
        PERCENT.write(*(o.flops_saved for o in each)),
        before if before == ABSENT else f"{before} → {after}",
        volume(*(o.bytes_moved for o in each)),
    ]
    if target_accuracy is not None:
        cells.append(_time_to_target(row))
    return tuple(cells)


def _are_unequal(runs: Sequence[Run]) -> bool:
    """Whether a run dealt classes unequally, and says how well each is recognised."""
    dealt = [run.summary for run in runs if run.config.get("partition", "iid") != "iid"]
    return any(summary is not None and summary.accuracy_by_class for summary in dealt)


def _unequal_cells(row: ComparisonRow) -> tuple[str, str]:
    return (
        PERCENT.write(*(o.worst_class_accuracy for o in row.outcomes)),
        PERCENT.write(*(o.least_worker_accuracy for o in row.outcomes)),
    )


def _label(row: ComparisonRow) -> str:
    label, (first, *others) = row.group.label, row.outcomes
    if others:
        return f"{label}, {len(row.outcomes)} runs"
    planned = number_of(row.group.first.config.get("rounds", "?"), "round")
    return label if first.finished else f"{label}, {first.rounds} of {planned}"


def _time_to_target(row: ComparisonRow) -> str:
    """A mean over those that got there says so: it is no mean of the row's runs."""
    reached = [o.target_time_s for o in row.outcomes if o.target_time_s is not None]
    if not reached or len(reached) == len(row.outcomes):
        return duration(*reached)
    return f"{duration(*reached)} in {len(reached)} of {len(row.outcomes)} runs"


def _are_paired(told: Sequence[ComparisonRow]) -> bool:
    """Whether any row has several seeds in common with the one it is held against."""
    return any(len(row.gains) > 1 for row in told)


def _notes(runs: Sequence[Run], told: Sequence[ComparisonRow], over_seeds: bool) -> list[str]:
    notes = []
    if names := unequal(runs):
        notes.append(f"The runs differ in {', '.join(names)}: compare times with care.")
    if not over_seeds:
        return notes
    if any(len(row.group.runs) > 1 for row in told):
        notes.append("Over seeds: mean ± standard deviation (lowest–highest).")
    if _are_paired(told):
        notes.append(
            "Points above: the mean difference in accuracy, seed by seed, and its 95 % interval; "
            "one that holds 0 may be luck."
        )
    if again := [row.group.label for row in told if row.group.repeats_a_seed]:
        notes.append(f"Several runs of one seed count as several: {', '.join(again)}.")
    if unfinished := [run.label for run in distinct_labels(runs) if run.summary is None]:
        notes.append(f"Unfinished, and in no mean: {', '.join(unfinished)}.")
    return notes


# Forecasts side by side, in the columns in which runs are compared.

_HEADINGS = (
    "strategy",
    "virtual time",
    "speed-up",
    "parameters saved",
    "FLOPs saved",
    "smallest sub-model",
    "H before → after",
)


def forecast_table(forecasts: Sequence[Forecast]) -> Comparison:
    """One row a strategy, held against that of `fedavg-s`, as runs are, or else against the first.
    Warnings come below."""
    longest = max(each.virtual_time_s for each in forecasts)
    usual = [each for each in forecasts if each.strategy == BASELINE_STRATEGY]
    reference = [*usual, *forecasts][0].virtual_time_s
    rows = [
        (
            each.strategy,
            duration_measure(longest).write(each.virtual_time_s),
            FACTOR.write(reference / each.virtual_time_s),
            PERCENT.write(1 - fmean(each.retention)),
            PERCENT.write(each.flops_saved),
            PERCENT.write(min(each.retention)),
            " → ".join(
                HETEROGENEITY.write(h) for h in first_and_last_heterogeneity(each.heterogeneity)
            ),
        )
        for each in forecasts
    ]
    warnings = [f"{each.strategy}: {told}" for each in forecasts for told in each.warnings]
    return Comparison(_HEADINGS, rows, warnings)
