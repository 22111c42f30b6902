"""The panels that figures are made of: each draws one thing about runs into given axes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from adaptcl.records import RoundRecord
from adaptcl.report.palette import FAINT, INK, Look
from adaptcl.report.runs import Run, clock_of
from adaptcl.report.wording import Measure, duration_measure

_MARKED_ROUNDS = 20
"""Up to this many points a line shows its points; beyond, they would hide it."""
_NAMED_WORKERS = 20
"""Up to this many workers, each has its own tick."""
_DRAWN_WORKERS = 100
"""Up to this many workers, each has its own line or bar; beyond, they would make one dark area."""

_LABELLED_BAR_INCHES = 0.34
"""The least room a bar needs for its number not to run into the next one's."""


def accuracy_over_rounds(axes: Axes, runs: Sequence[Run], looks: Sequence[Look]) -> None:
    """Test accuracy of each run by round."""
    for run, look in zip(runs, looks, strict=True):
        measured = _measured(run)
        _line(axes, [r.round for r, _ in measured], [100 * a for _, a in measured], run, look)
    axes.set(xlabel="round", ylabel="test accuracy (%)")
    axes.xaxis.set_major_locator(_whole_numbers())


def accuracy_over_time(axes: Axes, runs: Sequence[Run], looks: Sequence[Look]) -> None:
    """Test accuracy of each run by the time of its clock."""
    unit = duration_measure(*(run.rounds[-1].virtual_time_s for run in runs if run.rounds))
    for run, look in zip(runs, looks, strict=True):
        measured = _measured(run)
        times = [r.virtual_time_s / unit.scale for r, _ in measured]
        _line(axes, times, [100 * a for _, a in measured], run, look)
        if times:
            axes.plot(times[-1], 100 * measured[-1][1], "o", color=look.colour, markersize=7)
    axes.set(xlabel=f"{clock_of(runs)} ({unit.unit.strip()})", ylabel="test accuracy (%)")
    axes.set_xlim(left=0)


def heterogeneity(axes: Axes, runs: Sequence[Run], looks: Sequence[Look]) -> None:
    """H of each run by round: 0 where all workers need equally long."""
    for place, (run, look) in enumerate(zip(runs, looks, strict=True)):
        known = [r for r in run.rounds if math.isfinite(r.heterogeneity)]
        line = _line(axes, [r.round for r in known], [r.heterogeneity for r in known], run, look)
        # Runs that do not adapt have the same H: the wider line below shows beside the upper.
        line.set_linewidth(2.0 + 3.0 * (len(runs) - 1 - place) / len(runs))
    axes.set(xlabel="round", ylabel="heterogeneity H")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(_whole_numbers())


def update_times(axes: Axes, run: Run) -> None:
    """Each worker's update time by round, from the slowest at the start to the fastest."""
    courses = _update_times_by_worker(run)
    order = sorted(courses, key=lambda worker: courses[worker][0][1], reverse=True)
    unit = duration_measure(*(seconds for course in courses.values() for _, seconds in course))
    if len(order) > _DRAWN_WORKERS:
        _update_time_bands(axes, run, unit)
        order = []
    for place, worker in enumerate(order):
        fastest = place == len(order) - 1
        axes.plot(
            [number for number, _ in courses[worker]],
            [seconds / unit.scale for _, seconds in courses[worker]],
            color=INK if fastest else _SLOW_TO_FAST(place / max(1, len(order) - 2)),
            linewidth=3.0 if fastest else 1.7 if len(order) <= _NAMED_WORKERS else 0.7,
            zorder=3 if fastest else 2,
            label=_worker_label(place, worker, len(order)),
        )
    axes.set(xlabel="round", ylabel=f"update time ({unit.unit.strip()})")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(_whole_numbers())


def retention(axes: Axes, run: Run, look: Look) -> None:
    """The retention each worker ended with, as one bar a worker."""
    kept = {w.worker: w.retention for record in run.rounds for w in record.workers}
    workers = sorted(kept)
    values = [kept[worker] for worker in workers]
    if len(workers) > _DRAWN_WORKERS:
        axes.fill_between(workers, values, step="mid", color=look.colour, linewidth=0)
    elif workers:
        bars = axes.bar(workers, values, width=0.75, color=look.colour)
        if _width_in_inches(axes) / len(workers) >= _LABELLED_BAR_INCHES:
            axes.bar_label(bars, [f"{v:.2f}" for v in values], padding=2, fontsize=9, color=INK)
    axes.axhline(1.0, color=FAINT, linewidth=1.0, linestyle=(0, (4, 3)), zorder=0)
    axes.set(xlabel="worker", ylabel="retention at the end", ylim=(0, 1.12))
    _worker_ticks(axes, workers)


def update_time_change(axes: Axes, run: Run, look: Look) -> None:
    """Each worker's update time in its first and in its last round."""
    courses = _update_times_by_worker(run)
    workers = sorted(courses)
    unit = duration_measure(*(seconds for course in courses.values() for _, seconds in course))
    first = [courses[worker][0][1] / unit.scale for worker in workers]
    last = [courses[worker][-1][1] / unit.scale for worker in workers]
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


def _update_time_bands(axes: Axes, run: Run, unit: Measure) -> None:
    """Of very many workers the median, and where the middle nine tenths and all of them lie."""
    rounds = [record for record in run.rounds if record.workers]
    numbers = [record.round for record in rounds]
    times = [[w.update_time_s / unit.scale for w in record.workers] for record in rounds]
    for label, low, high, alpha in (("all workers", 0, 100, 0.15), ("nine tenths", 5, 95, 0.3)):
        bounds = [np.percentile(each, (low, high)) for each in times]
        axes.fill_between(
            numbers,
            [float(lower) for lower, _ in bounds],
            [float(upper) for _, upper in bounds],
            color=_SLOW_TO_FAST(0.5),
            alpha=alpha,
            linewidth=0,
            label=label,
        )
    medians = [float(np.median(each)) for each in times]
    axes.plot(numbers, medians, color=INK, linewidth=3.0, label="median")


def _whole_numbers() -> MaxNLocator:
    return MaxNLocator(integer=True, steps=[1, 2, 5, 10])


def _shortened(name: str, low: float, high: float) -> Colormap:
    whole = matplotlib.colormaps[name]
    return LinearSegmentedColormap.from_list(
        name, [whole(low + (high - low) * step / 255) for step in range(256)]
    )


_SLOW_TO_FAST = _shortened("plasma", 0.82, 0.12)
"""Light for the slowest, dark for the fastest; the palest end is left out, to show on white."""


def _line(axes: Axes, x: Sequence[float], y: Sequence[float], run: Run, look: Look) -> Line2D:
    (line,) = axes.plot(x, y, color=look.colour, label=run.label)
    if look.dashes:
        line.set_dashes(look.dashes)
    if len(x) <= _MARKED_ROUNDS:
        line.set(marker="o", markersize=4)
    return line


def _measured(run: Run) -> list[tuple[RoundRecord, float]]:
    return [
        (record, record.accuracy)
        for record in run.rounds
        if record.accuracy is not None and math.isfinite(record.accuracy)
    ]


def _update_times_by_worker(run: Run) -> dict[int, list[tuple[int, float]]]:
    """Pairs of round and update time; of several updates in one round the last counts."""
    courses: dict[int, dict[int, float]] = {}
    for record in run.rounds:
        for worker in record.workers:
            courses.setdefault(worker.worker, {})[record.round] = worker.update_time_s
    return {worker: list(course.items()) for worker, course in courses.items()}


def _width_in_inches(axes: Axes) -> float:
    figure = axes.get_figure(root=True)
    return axes.get_position().width * (figure.get_figwidth() if figure is not None else 0.0)


def _worker_label(place: int, worker: int, count: int) -> str:
    if place == count - 1:
        return f"worker {worker}, fastest at first"
    return f"worker {worker}, slowest at first" if place == 0 else "_"


def _worker_ticks(axes: Axes, workers: Sequence[int]) -> None:
    axes.grid(visible=False, axis="x")
    if len(workers) <= _NAMED_WORKERS:
        axes.set_xticks(list(workers))
    else:
        axes.xaxis.set_major_locator(_whole_numbers())
