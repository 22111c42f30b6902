"""Figures of runs, as PNG files: the same runs always give the same bytes.

Figures are drawn without pyplot, so nothing is left behind in a process that draws for itself.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from adaptcl.errors import RunFolderError
from adaptcl.report import panels
from adaptcl.report.palette import STYLE, Look, looks
from adaptcl.report.runs import Run, distinct_labels

_DPI = 160


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
    axes.set_title(f"Update time of each worker: {run.label}")
    _legend_below(figure, axes)
    return figure


def _retention(run: Run, look: Look) -> Figure:
    figure = Figure(figsize=(7.2, 5.6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    panels.update_time_change(above, run, look)
    above.set(title=f"Update time and retention of each worker: {run.label}", xlabel="")
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
    for axes in (second, fourth):
        axes.set_xlabel(f"{axes.get_xlabel()} · {run.label}")
    _legend_below(figure, first)
    return figure


def _legend_below(figure: Figure, axes: Axes) -> None:
    """Outside the axes, where it can hide no line."""
    handles, labels = axes.get_legend_handles_labels()
    longest = max(len(label) for label in labels)
    width = figure.get_figwidth()
    columns = max(1, min(len(labels), int(width * 11 / (longest + 7))))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)


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
