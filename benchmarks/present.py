"""A report as a table on the terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from benchmarks.benchmark import BenchmarkReport, Measurement
from benchmarks.machine import Machine

_VERDICT_STYLES = {"holds": "green", "missed": "bold red", "": ""}


def table(report: BenchmarkReport, machine: Machine) -> RenderableType:
    """Title, figures with their bars, and what one must know to read them."""
    figures = Table(title=report.title, title_justify="left", title_style="bold")
    figures.add_column("")
    figures.add_column(report.unit, justify="right")
    timed = machine.gpu and any(row.seconds is not None for row in report.rows)
    limited = any(row.limit is not None for row in report.rows)
    barred = any(row.bar is not None for row in report.rows)
    if timed:
        figures.add_column("time", justify="right")
    if limited:
        figures.add_column("limit", justify="right")
    if barred:
        figures.add_column("bar", justify="right")
        figures.add_column("")
    for row in report.rows:
        cells: list[str | Text] = [row.label, _number(row.value)]
        if timed:
            cells.append(_time(row))
        if limited:
            cells.append(_number(row.limit) if row.limit is not None else "")
        if barred:
            cells.append(str(row.bar) if row.bar else "")
            cells.append(Text(row.verdict, _VERDICT_STYLES[row.verdict]))
        figures.add_row(*cells)
    lines = [f"Machine: {machine}.", f"Measured: {report.how}.", *report.notes]
    return Group(figures, *(Text(line) for line in lines))


def _number(value: float) -> str:
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def _time(row: Measurement) -> str:
    if row.seconds is None:
        return ""
    return f"{row.seconds:.1f} s" if row.seconds >= 1 else f"{1000 * row.seconds:.2f} ms"
