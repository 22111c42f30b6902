"""Tables for terminals, Markdown and LaTeX, among them the comparison of runs.

A terminal too narrow for one row for each run gets the table upright: one row for each quantity,
one column for each run. So that more runs fit beside each other, names of quantities wrap, and
cells break where a reader would pause. What still does not fit comes in further tables below.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from html import escape
from statistics import fmean
from typing import Literal

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from adaptcl.errors import enumerated
from adaptcl.quantities import ABSENT, Quantity, duration, duration_unit, short_duration, volume
from adaptcl.records import TESTS, first_and_last_heterogeneity
from adaptcl.report.comparison import BASELINES, Comparison, ComparisonRow
from adaptcl.report.intervals import interval
from adaptcl.report.notes import ahead, are_paired, notes_on
from adaptcl.report.participation import gone_at_the_end
from adaptcl.report.saved_run import Run, clock_of
from adaptcl.report.wording import (
    FACTOR,
    HETEROGENEITY,
    PERCENT,
    ROUNDS,
    metric_quantity,
    metric_span,
    number_of,
)
from adaptcl.runs.forecast import Forecast
from adaptcl.strategies.dc_asgd import planned_rounds
from adaptcl.training.objectives.metrics import Measure

_MATHS = {"±": "pm", "×": "times", "→": "to", "σ": "sigma", "γ": "gamma", "α": "alpha", "β": "beta"}
_LATEX = str.maketrans(
    {
        **{letter: f"\\{letter}" for letter in "&%$#_{}"},
        **{letter: rf"$\{name}$" for letter, name in _MATHS.items()},
        **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
        **{"−": "$-$", "<": "$<$", ">": "$>$", "|": "$|$", "–": "--", "…": r"\dots{}"},
    }
)
"""What LaTeX has for characters that it reads in another way, or not at all."""

_FORECAST_COLUMNS = (
    "strategy",
    "virtual time",
    "rounds",
    "rounds per time",
    "parameters saved",
    "FLOPs saved",
    "smallest sub-model",
    "H before → after",
)
_MEANINGS = {
    "fedavg-s": "fedavg-s: FedAVG with AdaptCL's sparse training",
    "virtual time": "virtual time: how long the simulated machines take",
    "rounds per time": "rounds per time: as many times FedAVG's, or else the first row's",
    "parameters saved": "parameters saved: 1 − retention, the share that workers keep, on average",
    "H before": "H: 0 if all workers take equally long, near 1 if one is far ahead",
}
_ANY_WIDTH = 10_000  # a width in characters that no table needs
_PRINTED_WIDTH = 100  # of a table as text, wherever that goes
_LEAST_NAME = 18
"""The width in characters that names of quantities keep beside many runs."""
_PAUSES = re.compile(r" (?=\(|→ |at |in )|(?<=,) ")
"""Where a cell may break: before an interval, a second number or a time, between settings."""


@dataclass(frozen=True)
class ReportTable:
    """A table of text, with notes below it, that adapts to the width of its terminal."""

    headings: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    notes: Sequence[str] = ()
    title: str = ""
    labels: int = 1  # how many leading columns hold labels; the others hold numbers
    upright: bool = True
    """Whether a narrow terminal gets the table upright; otherwise its labels wrap."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        unlimited = options.update(width=_ANY_WIDTH)

        def width_of(table: Table) -> int:
            return Measurement.get(console, unlimited, table).maximum

        if self.title:
            yield Text(self.title, style="bold")
        wide = self._wide()
        if not self.upright or width_of(wide) <= options.max_width:
            yield wide
        else:
            yield from self._stacked(options.max_width, width_of)
        yield from map(Text, self.notes)

    def __str__(self) -> str:
        console = Console(
            width=_PRINTED_WIDTH, force_terminal=False, force_jupyter=False, color_system=None
        )
        with console.capture() as captured:
            console.print(self)
        return captured.get().rstrip()

    def markdown(self) -> str:
        """The table and its notes as Markdown, without a line end."""
        rule = ["---"] * self.labels + ["---:"] * (len(self.headings) - self.labels)
        lines = [
            "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
            for row in (self.headings, rule, *self.rows)
        ]
        return "\n".join(lines) + "".join(f"\n\n{note}" for note in self.notes)

    def latex(self) -> str:
        """The table as LaTeX, without a line end; its notes are comments."""
        lines = [
            " & ".join(cell.translate(_LATEX) for cell in row) + r" \\"
            for row in (self.headings, *self.rows)
        ]
        columns = "l" * self.labels + "r" * (len(self.headings) - self.labels)
        begin, end = rf"\begin{{tabular}}{{{columns}}}", r"\end{tabular}"
        notes = [f"% {note}" for note in self.notes]
        return "\n".join([begin, lines[0], r"\hline", *lines[1:], end, *notes])

    def html(self) -> str:
        """The table and its notes as HTML, for notebooks."""
        lines = [
            "".join(f"<{tag} style='text-align:{self._align(place)}'>{escape(cell)}</{tag}>"
                    for place, cell in enumerate(cells))
            for tag, cells in [("th", self.headings), *(("td", row) for row in self.rows)]
        ]  # fmt: skip
        table = "".join(f"<tr>{line}</tr>" for line in lines)
        return f"<table>{table}</table>" + "".join(f"<p>{escape(note)}</p>" for note in self.notes)

    def _align(self, place: int) -> Literal["left", "right"]:
        return "left" if place < self.labels else "right"

    def _wide(self) -> Table:
        table = Table()
        for place, name in enumerate(self.headings):
            table.add_column(name, justify=self._align(place))
        for cells in self.rows:
            table.add_row(*map(Text, cells))
        return table

    def _stacked(self, width: int, width_of: Callable[[Table], int]) -> list[Table]:
        """Upright tables: with cells in one piece, unless fewer tables hold them broken."""
        rows = [tuple(_PAUSES.sub("\n", cell) for cell in cells) for cells in self.rows]
        broken = replace(self, rows=rows)
        return min((each._packed(width, width_of) for each in (self, broken)), key=len)

    def _packed(self, width: int, width_of: Callable[[Table], int]) -> list[Table]:
        """Upright tables, each with as many blocks as fit, and at least one."""
        longest = max(map(len, self.headings[self.labels :]), default=1)
        least = min(longest, _LEAST_NAME)

        def room(rows: Sequence[tuple[str, ...]]) -> int:
            """What is left for the names of quantities."""
            return width - width_of(self._upright(rows, 1)) + 1

        blocks = self._blocks()
        tables: list[Table] = []
        while blocks:
            rows = blocks.pop(0)
            while blocks and room([*rows, *blocks[0]]) >= least:
                rows += blocks.pop(0)
            tables.append(self._upright(rows, min(longest, max(room(rows), 1))))
        return tables

    def _blocks(self) -> list[list[tuple[str, ...]]]:
        """Rows that stay together: a row without a label belongs to the one above."""
        blocks: list[list[tuple[str, ...]]] = []
        for cells in self.rows:
            if cells[0] or not blocks:
                blocks.append([])
            blocks[-1].append(cells)
        return blocks

    def _upright(self, rows: Sequence[tuple[str, ...]], names: int) -> Table:
        """One table of these rows; `names` is the width for the names of quantities."""
        table = Table()
        table.add_column(self.headings[0], width=names)
        for cells in rows:
            table.add_column(Text("\n".join(cells[: self.labels])), justify="right")
        for place, name in list(enumerate(self.headings))[self.labels :]:
            table.add_row(name, *(Text(cells[place]) for cells in rows))
        return table


Column = tuple[str, Callable[[ComparisonRow], str]]  # a heading, and what stands below it


def comparison_table(comparison: Comparison) -> ReportTable:
    """One row for each group of runs."""
    columns = _columns(comparison)
    headings = tuple(heading for heading, _ in columns)
    rows = [tuple(cell(row) for _, cell in columns) for row in comparison.rows]
    return ReportTable(headings, rows, [*_explained(headings, rows), *notes_on(comparison)])


def _explained(headings: Sequence[str], rows: Sequence[tuple[str, ...]]) -> list[str]:
    """One line that says what the words of a table mean, if it has any of the paper's."""
    words = " ".join([*headings, *(row[0] for row in rows)])
    found = [meaning for word, meaning in _MEANINGS.items() if word in words]
    return [f"{'; '.join(found)}."] if found else []


def forecast_table(forecasts: Sequence[Forecast]) -> ReportTable:
    """One row for each strategy, compared with FedAVG if it is there; warnings come below.

    What a round learns is unknown, so `rounds per time` is no speed-up. It compares mean times of a
    round, because a limit of time ends runs after unequal rounds.
    """
    baselines = [each for name in BASELINES for each in forecasts if each.strategy == name]
    reference = fmean([*baselines, *forecasts][0].round_times_s)
    rows = [
        (
            each.strategy,
            duration(each.virtual_time_s),
            str(len(each.round_times_s)),
            FACTOR.write(reference / fmean(each.round_times_s)),
            PERCENT.write(1 - fmean(each.retention)),
            PERCENT.write(each.flops_saved),
            PERCENT.write(min(each.retention)),
            " → ".join(
                HETEROGENEITY.write(h) for h in first_and_last_heterogeneity(each.heterogeneity)
            ),
        )
        for each in forecasts
    ]
    warned: dict[str, list[str]] = {}
    for each in forecasts:
        for warning in each.warnings:
            warned.setdefault(warning, []).append(each.strategy)
    warnings = [f"{enumerated(names)}: {warning}" for warning, names in warned.items()]
    return ReportTable(_FORECAST_COLUMNS, rows, [*_explained(_FORECAST_COLUMNS, rows), *warnings])


def gain_text(gains: Sequence[float], *, in_points: bool = True) -> str:
    """`+1.20 (-0.35 to +2.75)`: a mean difference, of shares in points, and its 95 % interval."""
    if not gains:
        return ABSENT
    scaled = [100 * each for each in gains] if in_points else list(gains)
    form = "+.2f" if in_points else "+.3g"
    return f"{fmean(scaled):{form}}{_interval_text(interval(scaled), form)}"


def _interval_text(bounds: tuple[float, float] | None, form: str) -> str:
    return "" if bounds is None else f" ({bounds[0]:{form}} to {bounds[1]:{form}})"


def _columns(comparison: Comparison) -> list[Column]:
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
