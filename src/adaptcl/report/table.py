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
from adaptcl.quantities import duration
from adaptcl.records import first_and_last_heterogeneity
from adaptcl.report.columns import Column, columns_of
from adaptcl.report.comparisons.baselines import BASELINES
from adaptcl.report.comparisons.comparison import Comparison
from adaptcl.report.verdicts.notes import notes_on
from adaptcl.report.wording import (
    FACTOR,
    HETEROGENEITY,
    PERCENT,
)
from adaptcl.runs.forecast import Forecast

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

_MINUS = re.compile(r"(?<!\w)-(?=\d)")
"""A hyphen that stands for a minus, which is longer in print."""

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
            " & ".join(_MINUS.sub("−", cell).translate(_LATEX) for cell in row) + r" \\"
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


def comparison_table(comparison: Comparison, columns: Sequence[Column] = ()) -> ReportTable:
    """One row for each group of runs, with these columns or with all."""
    columns = columns or columns_of(comparison)
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
