"""The figure of the timeline: what each worker does in the first and in the last rounds.

All panels have the same scale of time. So the waiting of a method with a barrier, and how pruning
takes it away, can be seen without reading a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from adaptcl.records import end_s
from adaptcl.report.comparison import RunGroup
from adaptcl.report.figures.pictures import ShownFigure
from adaptcl.report.saved_run import clock_of
from adaptcl.report.wording import duration_unit
from adaptcl.report.worker_timeline import (
    PHASES,
    TimelineBar,
    chosen_workers,
    timeline_bars,
    waiting_share,
)

_ROUNDS = 3  # rounds of the method with the longest ones that a panel shows
_WORKERS = (4, 12)
"""The fewest and the most workers of a panel, which shows an even choice from slow to fast."""
_ALL_WORKERS = 40  # workers of all panels together, unless each has the fewest
_WORK = {"edgecolor": "none", "linewidth": 0.0}
_LOOKS: dict[str, dict[str, Any]] = {
    "send": {"facecolor": "#a9c1d1", **_WORK},
    "train": {"facecolor": "#2f4b60", **_WORK},
    "receive": {"facecolor": "#6f93ab", **_WORK},
    "wait": {"facecolor": "#ffe3a3", "edgecolor": "#d98e04", "linewidth": 0.0, "hatch": "//////"},
}
"""As on the page: work in shades of one hue that no strategy has, waiting striped."""
_WORKER_INCHES = 0.17
_PANEL_INCHES = 0.75


def timeline_figure(groups: Sequence[RunGroup]) -> Figure:
    """One row for each group: the first and the last rounds of its first run."""
    shown = [group for group in groups if any(r.workers for r in group.first.rounds)]
    runs = [group.first for group in shown]
    most = min(max(_ALL_WORKERS // len(runs), _WORKERS[0]), _WORKERS[1])
    workers = [chosen_workers(run.rounds, most) for run in runs]
    length = max(end_s(run.rounds[:_ROUNDS]) for run in runs)
    unit = duration_unit(length)
    heights = [_PANEL_INCHES + _WORKER_INCHES * len(each) for each in workers]
    figure = ShownFigure(figsize=(10.0, 0.6 + sum(heights)), layout="constrained")
    panels = figure.subplots(
        len(shown), 2, sharex="col", squeeze=False, gridspec_kw={"height_ratios": heights}
    )
    for (left, right), group, run, named in zip(panels, shown, runs, workers, strict=True):
        end = end_s(run.rounds)
        bars = timeline_bars(run.rounds)
        _draw_bars(left, bars, named, (0.0, length), 0.0, unit.scale)
        _draw_bars(right, bars, named, (end - length, end), end, unit.scale)
        seed = f", seed {run.config.get('seed')}" if len(group.runs) > 1 else ""
        waits = f"{group.label}{seed}: workers wait {100 * waiting_share(bars):.0f} %"
        right.set_title(waits, loc="right", fontsize=10, fontweight="normal")
        left.set_ylabel("worker")
    clock = f"{clock_of(runs)} ({unit.unit.strip()})"
    panels[0][0].set_title("What each worker does")
    panels[-1][0].set(xlabel=f"{clock} from the start", xlim=(0, length / unit.scale))
    panels[-1][1].set(xlabel=f"{clock} before the end", xlim=(-length / unit.scale, 0))
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(PHASES))
    return figure


def _draw_bars(
    axes: Axes,
    rounds: Sequence[Sequence[TimelineBar]],
    workers: Sequence[int],
    window: tuple[float, float],
    origin: float,
    scale: float,
) -> None:
    """The bars in a window of time; the axis counts from `origin`."""
    begin, end = window
    bars = [bar for each in rounds for bar in each if bar.until_s >= begin and bar.begin_s <= end]
    for place, worker in enumerate(workers):
        seen = [bar.phases() for bar in bars if bar.record.worker == worker]
        for number, phase in enumerate(PHASES):
            spans = [_clipped(phases[number], window) for phases in seen]
            axes.broken_barh(
                [((start - origin) / scale, length / scale) for start, length in spans],
                (place - 0.4, 0.8),
                label=phase if place == 0 else "_",
                **_LOOKS[phase],
            )
    axes.set_yticks(range(len(workers)), [str(worker) for worker in workers])
    axes.tick_params(axis="y", labelsize=8)
    axes.set_ylim(len(workers) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")


def _clipped(span: tuple[float, float], window: tuple[float, float]) -> tuple[float, float]:
    begin = min(max(span[0], window[0]), window[1])
    return begin, max(0.0, min(span[0] + span[1], window[1]) - begin)
