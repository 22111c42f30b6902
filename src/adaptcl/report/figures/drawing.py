"""Figures of runs: what is on each of them.

Figures are drawn without pyplot, so drawing leaves no state behind in the user's process.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from adaptcl.errors import RunFolderError
from adaptcl.report.comparisons.comparison import Comparison
from adaptcl.report.comparisons.groups import RunGroup
from adaptcl.report.figures import panels
from adaptcl.report.figures.equal_time import equal_time_figure
from adaptcl.report.figures.palette import FAINT, STYLE, Look, looks_by_condition
from adaptcl.report.figures.panels import Drawn
from adaptcl.report.figures.pictures import PictureOptions, ShownFigure, image_of
from adaptcl.report.figures.timeline import timeline_figure
from adaptcl.report.wording import number_of
from adaptcl.storage import written_whole

_LETTERS_PER_INCH = 11  # at the size of labels; titles are larger and bold
_TITLE_LETTERS_PER_INCH = 9
_HANDLE_LETTERS = 7  # the width of the line beside a legend's label
_LEGEND_ROW_INCHES = 0.22
_ROWS_WITHIN = 2  # rows of a legend that the figure has room for; it grows by each further row


def draw(comparison: Comparison, folder: Path, options: PictureOptions | None = None) -> list[Path]:
    """Draw all figures of some runs into a folder, over files of the same names."""
    options = options or PictureOptions()
    with figure_style():
        figures = compose_figures(comparison, titles=options.titles)
        images = {
            folder / f"{name}.{form}": image_of(figure, form)
            for name, figure in figures.items()
            for form in options.formats
        }
    for path, image in images.items():
        with written_whole(path) as file:
            file.write(image)
    return list(images)


def compose_figures(comparison: Comparison, *, titles: bool = True) -> dict[str, Figure]:
    """All figures of some runs by name, not rendered yet.

    Over seeds, runs that differ only in their seed make one line: their mean, in a band from the
    lowest to the highest.
    """
    rows = [row for row in comparison.rows if any(run.rounds for run in row.group.runs)]
    groups = [row.group for row in rows]
    if not groups:
        raise RunFolderError("There is nothing to draw: none of these runs has finished a round.")
    # Rows with one baseline stand together: they have one condition.
    together = [list(part) for _, part in groupby(rows, key=lambda row: id(row.baseline))]
    strategies = [[row.group.first.strategy for row in part] for part in together]
    drawn = list(map(Drawn, groups, looks_by_condition(strategies)))
    with figure_style():
        figures = _common_figures(comparison, drawn, titles=titles)
        for (group, look), name in zip(drawn, _file_names(groups), strict=True):
            if group.prunes:
                figures[f"update-times-{name}"] = _one_panel(
                    f"Update time of each worker: {_title_label(group)}",
                    partial(panels.update_times, group=group),
                )
                figures[f"retention-{name}"] = _retention(group, look)
            if any(record.worker_values for run in group.runs for record in run.rounds):
                figures[f"workers-{name}"] = _one_panel(
                    f"Tests of each worker: {_title_label(group)}",
                    partial(panels.worker_metrics, group=group, look=look),
                )
        if not titles:
            for axes in (axes for figure in figures.values() for axes in figure.axes):
                axes.set_title("", loc="left")
    return figures


@contextmanager
def figure_style() -> Iterator[None]:
    """Use AdaptCL's style while drawing, whatever matplotlibrc the user has."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        yield


def legend_below(figure: Figure, *all_axes: Axes, fixed_size: bool = False) -> None:
    """Put one legend for these axes below them, where it can hide no line.

    Unless its size is fixed, the figure grows with a long legend, so that the axes keep their
    height, and labels too long for its width are broken.
    """
    entries: dict[str, Artist] = {}
    for axes in all_axes:
        handles, labels = axes.get_legend_handles_labels()
        entries.update(zip(labels, handles, strict=True))
    if not entries:
        return
    letters = figure.get_figwidth() * _LETTERS_PER_INCH
    texts = list(entries)
    if not fixed_size:
        texts = [_broken(label, int(letters) - _HANDLE_LETTERS) for label in entries]
    columns = _most_columns(texts, letters)
    if not fixed_size:
        lines = max(text.count("\n") + 1 for text in texts) * math.ceil(len(texts) / columns)
        further = max(0, lines - _ROWS_WITHIN)
        figure.set_figheight(figure.get_figheight() + _LEGEND_ROW_INCHES * further)
    figure.legend(list(entries.values()), texts, loc="outside lower center", ncols=columns)


def _most_columns(texts: Sequence[str], letters: float) -> int:
    """How many columns of a legend fit; each is as wide as its longest line."""
    for columns in range(len(texts), 1, -1):
        widths = [
            max(len(line) for text in column for line in str(text).split("\n"))
            for column in np.array_split(texts, columns)
        ]
        if sum(width + _HANDLE_LETTERS for width in widths) <= letters:
            return columns
    return 1


def _common_figures(
    comparison: Comparison, drawn: Sequence[Drawn], *, titles: bool
) -> dict[str, Figure]:
    metric = _metric(comparison)
    groups = [each.group for each in drawn]
    slug = _slug(comparison.measure.name)
    figures = {
        "overview": _overview(comparison, drawn),
        f"{slug}-over-rounds": _one_panel(
            f"{metric} over rounds",
            lambda axes: panels.metric_over_rounds(axes, drawn),
            groups,
        ),
        f"{slug}-over-time": _one_panel(
            f"{metric} over time",
            lambda axes: panels.metric_over_time(axes, drawn, comparison),
            groups,
        ),
        "heterogeneity": _one_panel(
            "How unequal the workers' update times are",
            lambda axes: panels.heterogeneity(axes, drawn),
            groups,
        ),
    }
    if any(r.test_loss is not None for group in groups for run in group.runs for r in run.rounds):
        figures["loss"] = _loss(drawn)
    if comparison.baselines:
        figures["equal-time"] = equal_time_figure(comparison, titles=titles)
    if any(record.workers for group in groups for record in group.first.rounds):
        figures["timeline"] = timeline_figure(groups)
    return figures


def _metric(comparison: Comparison) -> str:
    """The name of the main metric, at the beginning of a title."""
    label = comparison.measure.label
    return label[0].upper() + label[1:]


def _slug(text: str) -> str:
    """Text as a part of a file's name."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.") or "run"


def _one_panel(
    title: str, panel: Callable[[Axes], None], groups: Sequence[RunGroup] = ()
) -> Figure:
    """A figure of one panel; `groups` are those that share it."""
    figure = ShownFigure(figsize=(7.2, 4.4), layout="constrained")
    axes = figure.subplots()
    panel(axes)
    axes.set_title(_broken_title(title, figure))
    _say_over_seeds(axes, groups)
    legend_below(figure, axes)
    return figure


def _loss(drawn: Sequence[Drawn]) -> Figure:
    """The loss on the test data beside that of training: where they part, models overfit."""
    figure = ShownFigure(figsize=(10.0, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    panels.over_rounds(left, drawn, lambda record: record.test_loss, "test loss")
    left.set_title("Loss on the test data")
    panels.over_rounds(right, drawn, lambda record: record.train_loss, "training loss")
    right.set_title("Loss while workers train")
    _say_over_seeds(right, [each.group for each in drawn])
    legend_below(figure, left)
    return figure


def _retention(group: RunGroup, look: Look) -> Figure:
    figure = ShownFigure(figsize=(7.2, 5.6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    panels.update_time_change(above, group, look)
    title = f"Update time and retention: {_title_label(group)}"
    above.set(title=_broken_title(title, figure), xlabel="")
    panels.retention(below, group, look)
    legend_below(figure, above)
    return figure


def _overview(comparison: Comparison, drawn: Sequence[Drawn]) -> Figure:
    """Four panels in a row; those of single workers show the run that adapts."""
    pruning = [each for each in drawn if each.group.prunes]
    adapting = [each for each in pruning if any(run.adapts for run in each.group.runs)]
    group, look = (adapting or pruning or drawn)[0]
    spaced = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.06)
    figure = ShownFigure(figsize=(15.0, 4.2), layout=spaced)
    first, second, third, fourth = figure.subplots(1, 4)
    panels.metric_over_time(first, drawn, comparison)
    first.set_title(f"{_metric(comparison)} over time")
    panels.update_times(second, group)
    second.set_title("Update time of each worker")
    if second.lines:
        second.legend(loc="best", handlelength=1.2)
    panels.heterogeneity(third, drawn)
    third.set_title("Heterogeneity over rounds")
    panels.retention(fourth, group, look)
    fourth.set_title("Retention by worker")
    room = int(figure.get_figwidth() / 4 * _LETTERS_PER_INCH)
    for axes in (second, fourth):
        _say_below(axes, _title_label(group), room)
    for axes in (first, third):
        _say_below(axes, _over_seeds([each.group for each in drawn]), room)
    legend_below(figure, first)
    return figure


def _title_label(group: RunGroup) -> str:
    """The label of a group, with the number of runs if it is a mean."""
    seeds = number_of(len(group.runs), "run")
    return group.label if len(group.runs) == 1 else f"{group.label}, mean of {seeds}"


def _over_seeds(groups: Sequence[RunGroup]) -> str:
    """Explain line and band if they stand for several runs."""
    counts = sorted({len(group.runs) for group in groups} - {1})
    return f"mean and range of {' or '.join(map(str, counts))} runs" if counts else ""


def _say_below(axes: Axes, what: str, letters: int) -> None:
    """Add words to the axis label, on further lines if they are long."""
    beside = f"{axes.get_xlabel()} · {what}"
    if len(beside) > letters:
        beside = f"{axes.get_xlabel()}\n{_broken(what, letters)}"
    if what:
        axes.set_xlabel(beside)


def _say_over_seeds(axes: Axes, groups: Sequence[RunGroup]) -> None:
    axes.set_title(_over_seeds(groups), loc="right", fontsize=10, fontweight="normal", color=FAINT)


def _broken_title(title: str, figure: Figure) -> str:
    return _broken(title, int(figure.get_figwidth() * _TITLE_LETTERS_PER_INCH))


def _broken(text: str, letters: int) -> str:
    """Break text into lines of at most this many letters."""
    return "\n".join(textwrap.wrap(text, letters, break_on_hyphens=False))


def _file_names(groups: Sequence[RunGroup]) -> list[str]:
    """Turn labels into file names that differ even if case and signs do not count."""
    names: list[str] = []
    for group in groups:
        plain = _slug(group.label)
        name, number = plain, 1
        while name in names:
            number += 1
            name = f"{plain}-{number}"
        names.append(name)
    return names
