"""The figure of a comparison: who is ahead at equal time, and who is first to the same result."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D

from adaptcl.quantities import duration, duration_unit
from adaptcl.records import end_s
from adaptcl.report.comparisons.comparison import Comparison, ComparisonRow
from adaptcl.report.comparisons.conditions import named_by_condition
from adaptcl.report.comparisons.intervals import interval
from adaptcl.report.figures.palette import FAINT, INK, Look, looks
from adaptcl.report.figures.pictures import ShownFigure
from adaptcl.report.saved_run import clock_of
from adaptcl.report.wording import axis_label, metric_quantity

_PANEL_INCHES = 3.9  # the width of one panel without its labels
_LETTER_INCHES = 0.085  # the width of a letter of a label
_ROW_INCHES = 0.46
_AROUND_INCHES = 1.6  # the height of titles, axis labels and legend
_HEADING = 0.75  # the height of a condition's name, in rows
_ARROW_POINTS = 24
_BEYOND = 1.15  # how far the axis of times goes, of the longest: arrows need room
_FROM_MARK: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "fontsize": 9}


class Line(NamedTuple):
    """One row of a comparison, and where and how it is drawn."""

    row: ComparisonRow
    look: Look
    place: float  # downwards, in rows


def equal_time_figure(comparison: Comparison, *, titles: bool) -> Figure:
    """Two panels with one line for each row; rows of a condition stand together, below its name."""
    lines, headings = _arranged(comparison)
    labels = [*headings, *(line.row.group.label for line in lines)]
    height = max(line.place for line in lines) + 1
    width = 2 * _PANEL_INCHES + _LETTER_INCHES * max(map(len, labels))
    figure = ShownFigure(
        figsize=(width, _AROUND_INCHES + _ROW_INCHES * height),
        layout=ConstrainedLayoutEngine(w_pad=0.12),
    )
    left, right = figure.subplots(1, 2, sharey=True)
    measure = comparison.measure
    unit = draw_values(left, lines), draw_times(right, lines)
    what, clock = axis_label(measure), f"{clock_of(comparison.runs)} ({unit[1]})"
    at, to = f"at {comparison.when}", f"to {comparison.target}"
    if titles:
        left.set_title(f"{measure.label[0].upper()}{measure.label[1:]} {at}", loc="left")
        right.set_title(f"Time {to}", loc="left")
        left.set_xlabel(what)
        right.set_xlabel(clock)
    else:
        left.set_xlabel(f"{what} {at}")
        right.set_xlabel(f"{clock}\n{to}")
    for axes in (left, right):
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        axes.margins(x=0.15)
    longest = right.dataLim.x1
    right.set_xlim(0, _BEYOND * longest if longest > 0 else None)
    _name_lines(left, lines, headings, height)
    _explain(figure, lines)
    return figure


def _arranged(comparison: Comparison) -> tuple[list[Line], dict[str, float]]:
    """The lines from top to bottom, and the places of the conditions' names."""
    lines: list[Line] = []
    headings: dict[str, float] = {}
    place = 0.0
    for condition, part in named_by_condition(comparison.by_baseline()):
        if condition:
            headings[condition] = place
            place += _HEADING
        # So a method has one colour under all conditions.
        chosen = looks([row.group.first.strategy for row in part.rows])
        for row, look in zip(part.rows, chosen, strict=True):
            lines.append(Line(row, look, place))
            place += 1
    return lines, headings


def draw_values(axes: Axes, lines: Sequence[Line]) -> str:
    """The main metric at equal time; returns its unit."""
    measure = lines[0].row.group.first.measure
    values = [[o.value_at_time for o in line.row.outcomes] for line in lines]
    quantity = metric_quantity(measure, *(v for each in values for v in each))
    limits = (0.0, 1.0) if measure.in_percent else (-math.inf, math.inf)
    for line, found in zip(lines, values, strict=True):
        known = [each for each in found if each is not None]
        _draw_line(axes, line, known, quantity.scale, quantity.write, limits)
    return quantity.unit


def draw_times(axes: Axes, lines: Sequence[Line]) -> str:
    """The times to the target; a row that never got there has an open mark where it ended."""
    ends = {line.place: _end_s(line.row) for line in lines if _missed(line.row)}
    unit = duration_unit(*(t for line in lines for t in line.row.target_times_s), *ends.values())
    for line in lines:
        reached, runs = line.row.target_times_s, len(line.row.outcomes)
        some = f" in {len(reached)} of {runs} runs" if len(reached) < runs else ""
        if line.place in ends:
            _draw_missed(axes, line, ends[line.place], unit.scale)
            continue
        _draw_line(axes, line, reached, unit.scale, _with(duration, some), (0.0, math.inf))
    return unit.unit.strip()


def _with(write: Callable[[float], str], more: str) -> Callable[[float], str]:
    return lambda value: write(value) + more


def _missed(row: ComparisonRow) -> bool:
    """Whether it ended without reaching a target that is known."""
    targets = [each.target_value for each in row.outcomes]
    return not row.target_times_s and targets != [None] * len(targets) and _end_s(row) > 0


def _end_s(row: ComparisonRow) -> float:
    return fmean(end_s(run.rounds) for run in row.group.runs)


def _draw_line(
    axes: Axes,
    line: Line,
    known: Sequence[float],
    scale: float,
    write: Callable[[float], str],
    limits: tuple[float, float],
) -> None:
    """The mean, the 95 % interval and each run.

    An interval ends at the limits of what is possible, such as an accuracy of 0.
    """
    if not known:
        return
    _, look, place = line
    scaled, (least, most) = [each / scale for each in known], limits
    if (bounds := interval(known)) is not None:
        low, high = max(bounds[0], least) / scale, min(bounds[1], most) / scale
        axes.hlines(place, low, high, color=look.colour, linewidth=2.0)
        axes.plot(scaled, [place] * len(scaled), "|", color=FAINT, markersize=9)
    axes.plot(fmean(scaled), place, look.marker, color=look.colour, markersize=8)
    axes.annotate(write(fmean(known)), (fmean(scaled), place), xytext=(0, 7), **_FROM_MARK)


def _draw_missed(axes: Axes, line: Line, end: float, scale: float) -> None:
    """An open mark with an arrow: it would have taken longer than this."""
    _, look, place = line
    at = (end / scale, place)
    axes.annotate(
        "",
        at,
        xytext=(_ARROW_POINTS, 0),
        textcoords="offset points",
        arrowprops={"arrowstyle": "<-", "color": look.colour, "linewidth": 1.5},
    )
    axes.plot(
        *at,
        look.marker,
        color="white",
        markeredgecolor=look.colour,
        markeredgewidth=1.5,
        markersize=8,
    )
    axes.annotate(f"> {duration(end)}", at, xytext=(0, 7), **_FROM_MARK)


def _name_lines(
    axes: Axes, lines: Sequence[Line], headings: dict[str, float], height: float
) -> None:
    places = [*headings.values(), *(line.place for line in lines)]
    axes.set_yticks(places, [*headings, *(line.row.group.label for line in lines)])
    for label in axes.get_yticklabels()[: len(headings)]:
        label.set_fontweight("bold")
    axes.set_ylim(height - 0.4, -0.7)


def _explain(figure: Figure, lines: Sequence[Line]) -> None:
    """A legend of what the marks mean, where they are more than one value for each row."""
    handles: list[Line2D] = []
    dot: dict[str, Any] = {"color": INK, "marker": "o", "linewidth": 0, "markersize": 7}
    if any(len(line.row.outcomes) > 1 for line in lines):
        handles = [
            Line2D([], [], label="mean", **dot),
            Line2D([], [], color=INK, linewidth=2, label="95 % interval"),
            Line2D([], [], label="each run", **dot | {"color": FAINT, "marker": "|"}),
        ]
    if any(_missed(line.row) for line in lines):
        label = "not reached when the run ended"
        handles.append(Line2D([], [], label=label, markerfacecolor="white", **dot))
    if handles:
        figure.legend(
            handles=handles, loc="outside lower center", ncols=len(handles), handlelength=1.6
        )
