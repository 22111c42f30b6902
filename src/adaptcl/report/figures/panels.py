"""The panels of figures: each function draws one thing about runs into axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from adaptcl.quantities import duration_unit
from adaptcl.records import RoundRecord
from adaptcl.report.comparisons.comparison import Comparison
from adaptcl.report.comparisons.groups import RunGroup
from adaptcl.report.figures import curves
from adaptcl.report.figures.curves import MeanCurve
from adaptcl.report.figures.palette import FAINT, INK, Look
from adaptcl.report.saved_run import clock_of
from adaptcl.report.wording import axis_label, metric_quantity

_MARKED_POINTS = 10
"""A line with more points than this marks only about so many: all of them would hide it."""
_NAMED_WORKERS = 20  # up to this many workers each get a tick
_DRAWN_WORKERS = 100
"""Up to this many workers each get a line or a bar; more would make one dark area."""
_LABELLED_BAR_INCHES = 0.34  # the room a bar needs so that its number does not touch the next one's
_BAND = 0.18  # the opacity of a band
_BEGINNING = 0.2  # of the shortest run: how much of it may lie outside the axes
_MARK: dict[str, Any] = {"color": FAINT, "linewidth": 1.0, "linestyle": (0, (4, 3)), "zorder": 0}
"""A line that marks a value of an axis."""
_SEEN = 0.005  # retentions that differ by less read the same


class Drawn(NamedTuple):
    """A group of runs, and how it is drawn in every figure."""

    group: RunGroup
    look: Look


def over_rounds(
    axes: Axes,
    drawn: Sequence[Drawn],
    value_of: Callable[[RoundRecord], float | None],
    label: str,
    scale: float = 1.0,
) -> list[Line2D]:
    """A value of each group of runs by round."""
    lines = [
        _line(axes, curves.by_round(each.group, value_of).scaled(1, scale), each, place)
        for place, each in enumerate(drawn)
    ]
    _round_axis(axes, label)
    return lines


def metric_over_rounds(axes: Axes, drawn: Sequence[Drawn]) -> None:
    measure = drawn[0].group.first.measure
    scale = metric_quantity(measure).scale
    over_rounds(axes, drawn, lambda record: record.main_value, axis_label(measure), scale)


def metric_over_time(axes: Axes, drawn: Sequence[Drawn], comparison: Comparison) -> None:
    """The main metric of each group of runs by time, and what they are compared by."""
    scale = metric_quantity(comparison.measure).scale
    runs = [run for each in drawn for run in each.group.runs]
    unit = duration_unit(*(run.rounds[-1].virtual_time_s for run in runs if run.rounds))
    found = [curves.metric_over_time(each.group).scaled(unit.scale, scale) for each in drawn]
    for place, (curve, each) in enumerate(zip(found, drawn, strict=True)):
        _line(axes, curve, each, place)
        look = each.look
        axes.plot(curve.x[-1:], curve.mean[-1:], look.marker, color=look.colour, markersize=7)
    name = axis_label(comparison.measure)
    axes.set(xlabel=f"{clock_of(runs)} ({unit.unit.strip()})", ylabel=name)
    axes.set_xlim(left=0)
    _leave_out_the_beginning(axes, found)
    if comparison.at_time_s is not None:
        axes.axvline(comparison.at_time_s / unit.scale, **_MARK)
    if comparison.target_value is not None:
        label = f"equal time, {comparison.target}"
        axes.axhline(comparison.target_value / scale, label=label, **_MARK)


def _leave_out_the_beginning(axes: Axes, found: Sequence[MeanCurve]) -> None:
    """Show where methods part; at first all climb alike, and that would fill the axis."""
    begin = _BEGINNING * min((curve.x[-1] for curve in found if curve.x), default=0.0)
    values = [
        value
        for curve in found
        for x, low, high in zip(curve.x, curve.low, curve.high, strict=True)
        for value in (low, high)
        if x >= begin
    ]
    margin = 0.05 * (max(values) - min(values)) if values else 0.0
    if margin > 0:
        axes.set_ylim(min(values) - margin, max(values) + margin)


def heterogeneity(axes: Axes, drawn: Sequence[Drawn]) -> None:
    lines = over_rounds(axes, drawn, lambda record: record.heterogeneity, "heterogeneity H")
    for place, line in enumerate(lines):
        # Runs that do not adapt have the same H: a wider line shows beside the one above it.
        line.set_linewidth(2.0 + 3.0 * (len(lines) - 1 - place) / len(lines))
    axes.set_ylim(bottom=0)


def update_times(axes: Axes, group: RunGroup) -> None:
    """Each worker's update time by round, from the slowest at the start to the fastest."""
    times = curves.update_times(group)
    order = sorted(times, key=lambda worker: times[worker].mean[0], reverse=True)
    unit = duration_unit(*(seconds for curve in times.values() for seconds in curve.mean))
    if len(order) > _DRAWN_WORKERS:
        _bands(axes, list(times.values()), unit.scale)
        order = []
    begin = min((curve.x[0] for curve in times.values()), default=0)
    for place, worker in enumerate(order):
        fastest = place == len(order) - 1
        axes.plot(
            times[worker].x,
            [seconds / unit.scale for seconds in times[worker].mean],
            color=INK if fastest else slow_to_fast(place / max(1, len(order) - 2)),
            linewidth=3.0 if fastest else 1.7 if len(order) <= _NAMED_WORKERS else 0.7,
            zorder=3 if fastest else 2,
            label=_worker_label(place, len(order), worker, times[worker].x[0], begin),
        )
    _round_axis(axes, f"update time ({unit.unit.strip()})")
    axes.set_ylim(bottom=0)


def worker_metrics(axes: Axes, group: RunGroup, look: Look) -> None:
    """The main metric of each worker's tests by round, and the mean over workers."""
    measure = group.first.measure
    scale = metric_quantity(measure).scale
    found = curves.by_worker(group, lambda record: record.worker_values)
    if len(found) > _DRAWN_WORKERS:
        _bands(axes, list(found.values()), scale)
    else:
        for place, worker in enumerate(sorted(found)):
            curve = found[worker].scaled(1, scale)
            label = "each worker" if place == 0 else "_"
            axes.plot(curve.x, curve.mean, color=FAINT, linewidth=1.0, label=label)
    merged = curves.by_round(group, lambda record: record.main_value).scaled(1, scale)
    axes.plot(merged.x, merged.mean, color=look.colour, linewidth=3.0, label="all workers together")
    _round_axis(axes, axis_label(measure))


def retention(axes: Axes, group: RunGroup, look: Look) -> None:
    """Each worker's retention at the end, one bar for each."""
    kept = curves.last_retention(group)
    workers = sorted(kept)
    values = [kept[worker].mean[0] for worker in workers]
    lows = [kept[worker].low[0] for worker in workers]
    tops = [kept[worker].high[0] for worker in workers]
    if len(workers) > _DRAWN_WORKERS:
        axes.fill_between(workers, values, step="mid", color=look.colour, linewidth=0)
    elif workers:
        axes.bar(workers, values, width=0.75, color=look.colour)
        if any(top - low > _SEEN for low, top in zip(lows, tops, strict=True)):
            axes.vlines(workers, lows, tops, color=INK, linewidth=1.2)
        if _width_in_inches(axes) / len(workers) >= _LABELLED_BAR_INCHES:
            for worker, value, top in zip(workers, values, tops, strict=True):
                axes.annotate(
                    f"{value:.2f}",
                    (worker, top),
                    xytext=(0, 2),
                    textcoords="offset points",
                    ha="center",
                    fontsize=9,
                )
    axes.axhline(1.0, **_MARK)
    axes.set(xlabel="worker", ylabel="retention at the end", ylim=(0, 1.12))
    _worker_ticks(axes, workers)


def update_time_change(axes: Axes, group: RunGroup, look: Look) -> None:
    """Each worker's update time in its first and in its last round."""
    times = curves.update_times(group)
    workers = sorted(times)
    unit = duration_unit(*(seconds for curve in times.values() for seconds in curve.mean))
    first = [times[worker].mean[0] / unit.scale for worker in workers]
    last = [times[worker].mean[-1] / unit.scale for worker in workers]
    if len(workers) > _DRAWN_WORKERS:
        axes.plot(workers, first, ".", color=FAINT, markersize=2)
        axes.plot(workers, last, ".", color=look.colour, markersize=2)
    else:
        axes.vlines(workers, first, last, color="#c4c4c4", linewidth=3.0)
        axes.plot(workers, first, "o", color="white", markeredgecolor=FAINT, markeredgewidth=1.8)
        axes.plot(workers, last, "o", color=look.colour)
    axes.lines[-2].set_label("first round")
    axes.lines[-1].set_label("last round")
    axes.set(xlabel="worker", ylabel=f"update time ({unit.unit.strip()})")
    axes.set_ylim(bottom=0)
    _worker_ticks(axes, workers)


def _bands(axes: Axes, found: Sequence[MeanCurve], scale: float) -> None:
    """The median, the middle nine tenths and the range of very many workers."""
    by_round: dict[float, list[float]] = {}
    for curve in found:
        for number, value in zip(curve.x, curve.mean, strict=True):
            by_round.setdefault(number, []).append(value / scale)
    numbers = sorted(by_round)
    for label, low, high, alpha in (("all workers", 0, 100, 0.15), ("nine tenths", 5, 95, 0.3)):
        bounds = [np.percentile(by_round[number], (low, high)) for number in numbers]
        axes.fill_between(
            numbers,
            [float(lower) for lower, _ in bounds],
            [float(upper) for _, upper in bounds],
            color=slow_to_fast(0.5),
            alpha=alpha,
            linewidth=0,
            label=label,
        )
    medians = [float(np.median(by_round[number])) for number in numbers]
    axes.plot(numbers, medians, color=INK, linewidth=3.0, label="median")


def _round_axis(axes: Axes, label: str) -> None:
    axes.set(xlabel="round", ylabel=label)
    axes.xaxis.set_major_locator(_whole_numbers())


def _whole_numbers() -> MaxNLocator:
    return MaxNLocator(integer=True, steps=[1, 2, 5, 10])


def slow_to_fast(share: float) -> tuple[float, float, float, float]:
    """A colour from light (0, the slowest worker) to dark (1, the fastest), none too pale."""
    return matplotlib.colormaps["plasma"](0.82 - 0.70 * share)


def _line(axes: Axes, curve: MeanCurve, drawn: Drawn, place: int) -> Line2D:
    """The line of a group; each begins its marks at another point, so that none hides another."""
    group, look = drawn
    (line,) = axes.plot(curve.x, curve.mean, color=look.colour, label=group.label)
    look.dash(line)
    every = max(1, len(curve.x) // _MARKED_POINTS)
    line.set(marker=look.marker, markersize=5, markevery=(place % every, every))
    if len(group.runs) > 1:
        axes.fill_between(
            curve.x, curve.low, curve.high, color=look.colour, alpha=_BAND, linewidth=0
        )
    return line


def _width_in_inches(axes: Axes) -> float:
    figure = axes.get_figure(root=True)
    return axes.get_position().width * (figure.get_figwidth() if figure is not None else 0.0)


def _worker_label(place: int, count: int, worker: int, first: float, begin: float) -> str:
    """Label the slowest and the fastest; a worker that came later gets its first round."""
    if place not in (0, count - 1):
        return "_"
    speed = "fastest" if place == count - 1 else "slowest"
    when = "at first" if first == begin else f"in its first round ({first:g})"
    return f"worker {worker}, {speed} {when}"


def _worker_ticks(axes: Axes, workers: Sequence[int]) -> None:
    axes.grid(visible=False, axis="x")
    if len(workers) <= _NAMED_WORKERS:
        axes.set_xticks(list(workers))
    else:
        axes.xaxis.set_major_locator(_whole_numbers())
