"""Tables for terminals and Markdown, among them the comparison of runs.

A terminal too narrow for one row a run gets the table upright: one row a quantity, one column a
run, and as many tables below each other as it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from adaptcl.records import first_and_last_heterogeneity
from adaptcl.report.comparison import BASELINE_STRATEGY, ComparisonRow, comparison_rows, interval
from adaptcl.report.labels import distinct_labels, job_differences
from adaptcl.report.saved_run import Run, clock_of
from adaptcl.report.wording import (
    ABSENT,
    FACTOR,
    HETEROGENEITY,
    PERCENT,
    duration,
    duration_unit,
    number_of,
    volume,
)
from adaptcl.runs.forecast import Forecast

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
_UNEQUAL_DATA_COLUMNS = ("worst class", "least worker")
"""Further columns for runs whose workers have different classes."""
_FORECAST_COLUMNS = (
    "strategy",
    _TIME,
    "speed-up",
    "parameters saved",
    "FLOPs saved",
    "smallest sub-model",
    "H before → after",
)
_ANY_WIDTH = 10_000
"""A width in characters that no table needs."""


@dataclass(frozen=True)
class ReportTable:
    """A table of text, with notes below it, that adapts to the width of its terminal."""

    headings: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    notes: Sequence[str] = ()
    title: str = ""
    labels: int = 1
    """How many leading columns hold labels; the others hold numbers."""
    upright: bool = True
    """Whether a narrow terminal gets the table upright; otherwise its labels wrap."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        unlimited = options.update(width=_ANY_WIDTH)

        def fits(table: Table) -> bool:
            return Measurement.get(console, unlimited, table).maximum <= options.max_width

        if self.title:
            yield Text(self.title, style="bold")
        wide = self._wide()
        yield from self._stacked(fits) if self.upright and not fits(wide) else [wide]
        yield from map(Text, self.notes)

    def markdown(self) -> str:
        """The table and its notes as Markdown, without a line end."""
        rule = ["---"] * self.labels + ["---:"] * (len(self.headings) - self.labels)
        lines = [
            "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
            for row in (self.headings, rule, *self.rows)
        ]
        return "\n".join(lines) + "".join(f"\n\n{note}" for note in self.notes)

    def _wide(self) -> Table:
        table = Table()
        for place, name in enumerate(self.headings):
            table.add_column(name, justify="left" if place < self.labels else "right")
        for cells in self.rows:
            table.add_row(*map(Text, cells))
        return table

    def _stacked(self, fits: Callable[[Table], bool]) -> list[Table]:
        """Upright tables, each of as many blocks as fit, and of at least one."""
        blocks = self._blocks()
        tables: list[Table] = []
        while blocks:
            rows = blocks.pop(0)
            while blocks and fits(self._upright([*rows, *blocks[0]])):
                rows += blocks.pop(0)
            tables.append(self._upright(rows))
        return tables

    def _blocks(self) -> list[list[tuple[str, ...]]]:
        """Rows that stay together: a row without a label belongs to the one above."""
        blocks: list[list[tuple[str, ...]]] = []
        for cells in self.rows:
            if cells[0] or not blocks:
                blocks.append([])
            blocks[-1].append(cells)
        return blocks

    def _upright(self, rows: Sequence[tuple[str, ...]]) -> Table:
        table = Table()
        table.add_column(self.headings[0])
        for cells in rows:
            table.add_column(Text("\n".join(cells[: self.labels])), justify="right")
        for place, name in list(enumerate(self.headings))[self.labels :]:
            table.add_row(name, *(Text(cells[place]) for cells in rows))
        return table


def comparison_table(
    runs: Sequence[Run], *, over_seeds: bool = False, target_accuracy: float | None = None
) -> ReportTable:
    """Compare runs; with a target accuracy, a fraction, also by the time it was reached."""
    rows = comparison_rows(runs, over_seeds=over_seeds, target_accuracy=target_accuracy)
    headings, cells = _headings(runs, target_accuracy), [_cells(r, target_accuracy) for r in rows]
    if _have_unequal_data(runs):
        headings = (*headings, *_UNEQUAL_DATA_COLUMNS)
        cells = [(*each, *_unequal_data_cells(row)) for each, row in zip(cells, rows, strict=True)]
    if over_seeds and _are_paired(rows):
        reference = next(row.against for row in rows if row.against)
        headings = (*headings, f"points above {reference}")
        cells = [(*each, gain_text(row.gains)) for each, row in zip(cells, rows, strict=True)]
    return ReportTable(headings, cells, _notes(runs, rows, over_seeds))


def forecast_table(forecasts: Sequence[Forecast]) -> ReportTable:
    """One row a strategy, compared with `fedavg-s`, else with the first; warnings come below."""
    longest = max(each.virtual_time_s for each in forecasts)
    baselines = [each for each in forecasts if each.strategy == BASELINE_STRATEGY]
    reference = [*baselines, *forecasts][0].virtual_time_s
    rows = [
        (
            each.strategy,
            duration_unit(longest).write(each.virtual_time_s),
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
    warnings = [f"{each.strategy}: {warning}" for each in forecasts for warning in each.warnings]
    return ReportTable(_FORECAST_COLUMNS, rows, warnings)


def gain_text(gains: Sequence[float]) -> str:
    """`+1.20 (-0.35 to +2.75)`: a mean difference in points and its 95 % interval."""
    if not gains:
        return ABSENT
    points = [100 * each for each in gains]
    mean = f"{fmean(points):+.2f}"
    bounds = interval(points)
    return mean if bounds is None else f"{mean} ({bounds[0]:+.2f} to {bounds[1]:+.2f})"


def _headings(runs: Sequence[Run], target_accuracy: float | None) -> tuple[str, ...]:
    clock = clock_of(runs)
    names = [clock if name == _TIME else name for name in COLUMNS]
    if target_accuracy is not None:
        names.append(f"{clock} to {100 * target_accuracy:g} %")
    return tuple(names)


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


def _have_unequal_data(runs: Sequence[Run]) -> bool:
    """Whether a run dealt classes unequally and recorded the accuracy of each class."""
    unequal = [run.summary for run in runs if run.config.get("partition", "iid") != "iid"]
    return any(summary is not None and summary.accuracy_by_class for summary in unequal)


def _unequal_data_cells(row: ComparisonRow) -> tuple[str, str]:
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
    """The mean time of the runs that reached the target, and how many if not all did."""
    reached = [o.target_time_s for o in row.outcomes if o.target_time_s is not None]
    if not reached or len(reached) == len(row.outcomes):
        return duration(*reached)
    return f"{duration(*reached)} in {len(reached)} of {len(row.outcomes)} runs"


def _are_paired(rows: Sequence[ComparisonRow]) -> bool:
    """Whether any row shares several seeds with the baseline."""
    return any(len(row.gains) > 1 for row in rows)


def _notes(runs: Sequence[Run], rows: Sequence[ComparisonRow], over_seeds: bool) -> list[str]:
    notes = []
    if names := job_differences(runs):
        notes.append(f"The runs differ in {', '.join(names)}: compare times with care.")
    if not over_seeds:
        return notes
    if any(len(row.group.runs) > 1 for row in rows):
        notes.append("Over seeds: mean ± standard deviation (lowest–highest).")
    if _are_paired(rows):
        notes.append(
            "Points above: the mean difference in accuracy, seed by seed, and its 95 % interval; "
            "one that holds 0 may be luck."
        )
    if repeated := [row.group.label for row in rows if row.group.repeats_a_seed]:
        notes.append(f"Several runs of one seed count as several: {', '.join(repeated)}.")
    if unfinished := [run.label for run in distinct_labels(runs) if run.summary is None]:
        notes.append(f"Unfinished, and in no mean: {', '.join(unfinished)}.")
    return notes
