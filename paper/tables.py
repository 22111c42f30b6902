"""Tables: for each row what the paper prints, and below it what our runs give.

Several seeds are written as mean ± standard deviation. The same lines become Markdown in the
document and a table in the terminal.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from paper.columns import COLUMNS, Column
from paper.experiment import Experiment, Part, TableRow
from paper.identity import key
from paper.outcome import RowOutcome, outcome
from paper.store import Store
from paper.verdicts import Verdict

NOT_RUN = "not run yet"
NOTHING = "–"
_ANY_WIDTH = 10_000
"""Characters in a line, for a table that has all the room it wants."""


@dataclass(frozen=True)
class Line:
    """One line of a table."""

    label: str
    """Empty where the line belongs to the label above."""
    source: str
    """Whose numbers they are."""
    cells: tuple[str, ...]


def lines(part: Part, store: Store) -> list[Line]:
    """The lines of a part's table, in the order of its rows."""
    found: list[Line] = []
    for row in part.rows:
        if row.paper is not None:
            found.append(Line(row.label, "paper", _paper_cells(part, row)))
        came = outcome(part, row, store)
        label = "" if row.paper is not None else row.label
        found.append(Line(label, _source(came), _our_cells(part, came)))
    return found


def markdown(part: Part, store: Store) -> str:
    """A part's table for the document."""
    headings = ["", "", *(COLUMNS[column].heading for column in part.columns)]
    rows = [[line.label, line.source, *line.cells] for line in lines(part, store)]
    return markdown_table(headings, rows, texts=2)


def markdown_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, texts: int = 1
) -> str:
    """Any table as Markdown; columns after the first `texts` are numbers."""
    rule = ["---"] * texts + ["---:"] * (len(headings) - texts)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (headings, rule, *rows))


def table(part: Part, store: Store, width: int) -> Table:
    """A part's table for a terminal of this width."""
    beside = _beside(part, store)
    widest = Console(width=_ANY_WIDTH)
    fits = Measurement.get(widest, widest.options, beside).maximum <= width
    return beside if fits else _below(part, store)


def _beside(part: Part, store: Store) -> Table:
    """As in the document: a column for each quantity."""
    drawn = Table(title=part.title, title_justify="left")
    drawn.add_column("")
    drawn.add_column("")
    for column in part.columns:
        drawn.add_column(COLUMNS[column].heading, justify="right")
    for line in lines(part, store):
        drawn.add_row(line.label, line.source, *line.cells)
    return drawn


def _below(part: Part, store: Store) -> Table:
    """For narrow terminals: a line for each quantity, the paper's number beside ours."""
    drawn = Table(title=part.title, title_justify="left")
    drawn.add_column("")
    for heading in ("paper", "ours"):
        drawn.add_column(heading, justify="right")
    for row in part.rows:
        came = outcome(part, row, store)
        drawn.add_row(f"{row.label} ({_source(came)})", style="bold")
        quantities = zip(part.columns, _paper_cells(part, row), _our_cells(part, came), strict=True)
        for column, *numbers in quantities:
            if not {*numbers} <= {NOTHING, ""}:
                drawn.add_row(COLUMNS[column].heading, *numbers)
        drawn.add_section()
    return drawn


def verdict_table(found: Sequence[Verdict]) -> Table:
    """The claims and what became of them, for the terminal."""
    drawn = Table(show_lines=True)
    drawn.add_column("claim")
    drawn.add_column("verdict")
    for verdict in found:
        drawn.add_row(verdict.claim.text, verdict.words)
    return drawn


def listing(experiments: Sequence[Experiment], store: Store) -> Table:
    """All experiments, with how many of their runs there are."""
    drawn = Table(box=None, header_style="dim")
    for heading in ("experiment", "what it shows", "runs made"):
        drawn.add_column(heading)
    drawn.add_column("missing", justify="right")
    for experiment in experiments:
        wanted = {key(each.config.values()) for each in experiment.wanted()}
        made, left = len(wanted & store.runs.keys()), len(wanted - store.runs.keys())
        counts = (f"{made} of {len(wanted)}", str(left))
        if experiment.profiled_model:
            counts = (f"{len(store.profiles)} devices", "")
        drawn.add_row(experiment.name, experiment.title, *counts)
    return drawn


def written(column: Column, values: Sequence[float]) -> str:
    """A mean over seeds, with its spread where there are several."""
    if not values:
        return NOTHING
    mean = column.write(statistics.fmean(values))
    if len(values) == 1:
        return mean
    return f"{mean} ± {statistics.stdev(values):.{column.digits}f}"


def _paper_cells(part: Part, row: TableRow) -> tuple[str, ...]:
    printed = row.paper or {}
    return tuple(
        COLUMNS[column].write(printed[column]) if column in printed else NOTHING
        for column in part.columns
    )


def _our_cells(part: Part, came: RowOutcome) -> tuple[str, ...]:
    if not came.pairs:
        return ("",) * len(part.columns)
    return tuple(_our_cell(came, column) for column in part.columns)


def _our_cell(came: RowOutcome, column: str) -> str:
    """A cell; if only some of the row's seeds have a say in it, it says how many."""
    values = came.values(column)
    cell = written(COLUMNS[column], values)
    some = 0 < len(values) < len(came.pairs)
    return f"{cell} ({len(values)} of {len(came.pairs)} seeds)" if some else cell


def _source(came: RowOutcome) -> str:
    if not came.pairs:
        return f"ours, {NOT_RUN}"
    seeds = len(came.pairs)
    expected = len(came.row.seeds)
    plural = "seed" if expected == 1 else "seeds"
    count = f"{seeds} {plural}" if seeds == expected else f"{seeds} of {expected} {plural}"
    return f"ours, {count}"
