"""Figures of runs, as PNG files: the same runs always give the same bytes.

Figures are drawn without pyplot, so nothing is left behind in a process that draws for itself.
"""

from __future__ import annotations

import io
import math
import os
import re
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from adaptcl.errors import RunFolderError
from adaptcl.report import panels
from adaptcl.report.labels import distinct_labels
from adaptcl.report.palette import STYLE, Look, looks
from adaptcl.report.runs import Run

_DPI = 160
_LETTERS_PER_INCH = 11
"""Of the size of labels, at least; titles are larger and bold."""
_TITLE_LETTERS_PER_INCH = 9
_HANDLE_LETTERS = 7
"""The room that the line beside a legend's label takes."""
_LEGEND_ROW_INCHES = 0.22
_ROWS_WITHIN = 2
"""Rows of a legend that the figure has room for; for each more it grows."""


def draw(runs: Sequence[Run], folder: Path) -> list[Path]:
    """Draw all figures of these runs into a folder; the paths written, in order."""
    drawn = [run for run in distinct_labels(runs) if run.rounds]
    if not drawn:
        raise RunFolderError("There is nothing to draw: none of these runs has finished a round.")
    chosen = looks(drawn)
    with matplotlib.rc_context():
        # A user's own matplotlibrc would make the same run look different on every machine.
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        figures = _common_figures(drawn, chosen)
        for (run, look), name in zip(
            zip(drawn, chosen, strict=True), _file_names(drawn), strict=True
        ):
            if run.prunes:
                figures[f"update-times-{name}.png"] = _update_times(run)
                figures[f"retention-{name}.png"] = _retention(run, look)
        folder.mkdir(parents=True, exist_ok=True)
        return [_save(figure, folder / name) for name, figure in figures.items()]


def _common_figures(runs: Sequence[Run], chosen: Sequence[Look]) -> dict[str, Figure]:
    return {
        "overview.png": _overview(runs, chosen),
        "accuracy-over-rounds.png": _of_all_runs(
            "Accuracy over rounds", panels.accuracy_over_rounds, runs, chosen
        ),
        "accuracy-over-time.png": _of_all_runs(
            "Accuracy over time", panels.accuracy_over_time, runs, chosen
        ),
        "heterogeneity.png": _of_all_runs(
            "How unequal the workers' update times are", panels.heterogeneity, runs, chosen
        ),
    }


def _of_all_runs(
    title: str,
    panel: Callable[[Axes, Sequence[Run], Sequence[Look]], None],
    runs: Sequence[Run],
    chosen: Sequence[Look],
) -> Figure:
    figure = Figure(figsize=(7.2, 4.4), layout="constrained")
    axes = figure.subplots()
    panel(axes, runs, chosen)
    axes.set_title(title)
    _legend_below(figure, axes)
    return figure


def _update_times(run: Run) -> Figure:
    figure = Figure(figsize=(7.2, 4.4), layout="constrained")
    axes = figure.subplots()
    panels.update_times(axes, run)
    axes.set_title(_broken_title(f"Update time of each worker: {run.label}", figure))
    _legend_below(figure, axes)
    return figure


def _retention(run: Run, look: Look) -> Figure:
    figure = Figure(figsize=(7.2, 5.6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    panels.update_time_change(above, run, look)
    title = f"Update time and retention of each worker: {run.label}"
    above.set(title=_broken_title(title, figure), xlabel="")
    panels.retention(below, run, look)
    _legend_below(figure, above)
    return figure


def _overview(runs: Sequence[Run], chosen: Sequence[Look]) -> Figure:
    """Four panels in a row; those on single workers tell of the run that adapts."""
    pruning = [place for place, run in enumerate(runs) if run.prunes]
    place = next((p for p in pruning if runs[p].strategy == "adaptcl"), (pruning or [0])[0])
    run, look = runs[place], chosen[place]
    spaced = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.06)
    figure = Figure(figsize=(15.0, 4.2), layout=spaced)
    first, second, third, fourth = figure.subplots(1, 4)
    panels.accuracy_over_time(first, runs, chosen)
    first.set_title("Accuracy over time")
    panels.update_times(second, run)
    second.set_title("Update time of each worker")
    if second.lines:
        second.legend(loc="best", handlelength=1.2)
    panels.heterogeneity(third, runs, chosen)
    third.set_title("Heterogeneity over rounds")
    panels.retention(fourth, run, look)
    fourth.set_title("Retention by worker")
    room = int(figure.get_figwidth() / 4 * _LETTERS_PER_INCH)
    for axes in (second, fourth):
        # A short label fits beside the quantity; a long one gets lines of its own.
        axes.set_xlabel(_broken(f"{axes.get_xlabel()} · {run.label}", room))
    _legend_below(figure, first)
    return figure


def _legend_below(figure: Figure, axes: Axes) -> None:
    """Outside the axes, where it can hide no line, and not at the cost of their height."""
    width = figure.get_figwidth()
    handles, labels = axes.get_legend_handles_labels()
    labels = [_broken(label, int(width * _LETTERS_PER_INCH) - _HANDLE_LETTERS) for label in labels]
    longest = max(len(line) for label in labels for line in label.split("\n"))
    columns = int(width * _LETTERS_PER_INCH / (longest + _HANDLE_LETTERS))
    columns = max(1, min(len(labels), columns))
    lines = max(label.count("\n") + 1 for label in labels) * math.ceil(len(labels) / columns)
    height = figure.get_figheight() + _LEGEND_ROW_INCHES * max(0, lines - _ROWS_WITHIN)
    figure.set_figheight(height)
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def _broken_title(title: str, figure: Figure) -> str:
    return _broken(title, int(figure.get_figwidth() * _TITLE_LETTERS_PER_INCH))


def _broken(text: str, letters: int) -> str:
    """In lines of at most so many letters."""
    return "\n".join(textwrap.wrap(text, letters, break_on_hyphens=False))


def _file_names(runs: Sequence[Run]) -> list[str]:
    """Labels as parts of file names, distinct even where capitals and signs do not count."""
    names: list[str] = []
    for run in runs:
        plain = re.sub(r"[^a-z0-9.]+", "-", run.label.lower()).strip("-.") or "run"
        name, number = plain, 1
        while name in names:
            number += 1
            name = f"{plain}-{number}"
        names.append(name)
    return names


def _save(figure: Figure, path: Path) -> Path:
    """Whoever looks at the folder meanwhile sees the old file or the new one, never half of one."""
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=_DPI, metadata={"Software": None})
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        unfinished.write_bytes(image.getvalue())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path
