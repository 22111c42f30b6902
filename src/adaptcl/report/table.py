"""Runs side by side: one row a run, or one row for all runs that differ only in their seed.

A terminal too narrow for such rows gets the table upright: one row a quantity, one column a run,
and as many tables below each other as it takes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from adaptcl.report.labels import distinct_labels
from adaptcl.report.outcome import Outcome, outcome
from adaptcl.report.runs import Run, by_strategy, clock_of
from adaptcl.report.wording import (
    ABSENT,
    FACTOR,
    HETEROGENEITY,
    PERCENT,
    duration,
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
_BOUNDLESS = 10_000
"""A width in columns that no table needs."""
_BASELINE_STRATEGY = "fedavg-s"
_COMPARABLE = ("rounds", "workers", "model", "data")
"""Settings that decide how much work a run is: where they differ, a speed-up says little."""


@dataclass(frozen=True)
class _Row:
    """Runs told of in one line, all alike but for the seed, with what each came to."""

    label: str
    runs: tuple[Run, ...]
    outcomes: tuple[Outcome, ...]


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


def comparison(runs: Sequence[Run], *, over_seeds: bool = False) -> Comparison:
    """The comparison for the terminal."""
    return Comparison(_headings(runs), _cells(runs, over_seeds), _notes(runs, over_seeds))


def comparison_markdown(runs: Sequence[Run], *, over_seeds: bool = False) -> str:
    """The comparison as a Markdown table, followed by notes where numbers need a word."""
    rule = [":--", *("--:" for _ in COLUMNS[1:])]
    rows = [_headings(runs), rule, *_cells(runs, over_seeds)]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    for note in _notes(runs, over_seeds):
        lines += ["", note]
    return "\n".join(lines) + "\n"


def baseline(runs: Sequence[Run]) -> Run:
    """The run that speed-ups refer to, whatever the order of the different strategies.

    It is the first `fedavg-s`, else the first of the strategy that `adaptcl strategies` lists
    first.
    """
    ordered = by_strategy(runs)
    return next((run for run in ordered if run.strategy == _BASELINE_STRATEGY), ordered[0])


def _headings(runs: Sequence[Run]) -> tuple[str, ...]:
    """The columns, with the time called by the clock that it is of."""
    clock = clock_of(runs)
    return tuple(clock if name == _TIME else name for name in COLUMNS)


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


def _cells(runs: Sequence[Run], over_seeds: bool) -> list[tuple[str, ...]]:
    rows = _rows(runs, over_seeds)
    if not rows:
        return []
    chosen = baseline([row.runs[0] for row in rows])
    reference = next(row for row in rows if row.runs[0] is chosen)
    return [_row_cells(row, reference) for row in rows]


def _row_cells(row: _Row, reference: _Row) -> tuple[str, ...]:
    each = row.outcomes
    speed_up = FACTOR.write(1.0) if row is reference else FACTOR.write(*_speed_ups(row, reference))
    best_time = duration(*(o.best_time_s for o in each))
    best = PERCENT.write(*(o.best_accuracy for o in each))
    before = HETEROGENEITY.write(*(o.heterogeneity_first for o in each))
    after = HETEROGENEITY.write(*(o.heterogeneity_last for o in each))
    return (
        row.label,
        PERCENT.write(*(o.accuracy for o in each)),
        best if best == ABSENT else f"{best} at {best_time}",
        duration(*(o.time_s for o in each)),
        speed_up,
        PERCENT.write(*(o.params_saved for o in each)),
        PERCENT.write(*(o.flops_saved for o in each)),
        before if before == ABSENT else f"{before} → {after}",
        volume(*(o.bytes_moved for o in each)),
    )


def _speed_ups(row: _Row, reference: _Row) -> list[float | None]:
    """Seed against equal seed where both rows have it, so that luck with data cancels out."""
    reference_times = {
        run.config.get("seed"): result.time_s
        for run, result in zip(reference.runs, reference.outcomes, strict=True)
        if result.finished and result.time_s
    }
    if not reference_times:
        return []
    mean_time = sum(t for t in reference_times.values() if t) / len(reference_times)
    return [
        (reference_times.get(run.config.get("seed")) or mean_time) / result.time_s
        if result.finished and result.time_s
        else None
        for run, result in zip(row.runs, row.outcomes, strict=True)
    ]


def _rows(runs: Sequence[Run], over_seeds: bool) -> list[_Row]:
    if not over_seeds:
        return [_single(run) for run in distinct_labels(runs)]
    alike: dict[str, list[Run]] = {}
    for run in runs:
        settings = {k: v for k, v in run.config.items() if k not in ("seed", "out")}
        alike.setdefault(json.dumps(settings, sort_keys=True, default=str), []).append(run)
    firsts = distinct_labels([group[0] for group in alike.values()])
    return [_group(run.label, group) for run, group in zip(firsts, alike.values(), strict=True)]


def _single(run: Run) -> _Row:
    result = outcome(run)
    planned = number_of(run.config.get("rounds", "?"), "round")
    label = run.label if result.finished else f"{run.label}, {result.rounds} of {planned}"
    return _Row(label, (run,), (result,))


def _group(label: str, runs: Sequence[Run]) -> _Row:
    """Unfinished runs are left out of means, unless there is nothing else to tell of."""
    counted = [run for run in runs if run.summary is not None] or runs[:1]
    if len(counted) == 1:
        return _single(replace(counted[0], label=label))
    outcomes = tuple(outcome(run) for run in counted)
    return _Row(f"{label}, {len(counted)} runs", tuple(counted), outcomes)


def _notes(runs: Sequence[Run], over_seeds: bool) -> list[str]:
    notes = []
    differing = [
        name for name in _COMPARABLE if len({str(run.config.get(name)) for run in runs}) > 1
    ]
    if differing:
        notes.append(f"The runs differ in {', '.join(differing)}: compare times with care.")
    if over_seeds and any(len(row.runs) > 1 for row in _rows(runs, over_seeds)):
        notes.append("Over seeds: mean ± standard deviation (lowest–highest).")
    unfinished = [run.label for run in distinct_labels(runs) if run.summary is None]
    if over_seeds and unfinished:
        notes.append(f"Unfinished, and in no mean: {', '.join(unfinished)}.")
    return notes
