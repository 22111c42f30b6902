"""The timeline: who did what when, and the figure of it.

For each worker and round there is the time of sending, training, receiving and waiting. With a
barrier, whoever has answered waits until its round closes. Without one, a worker waits until it
gets its next task; a time that it was away for is no waiting. The page is made of this too.

All panels of the figure have the same scale of time. So the waiting of a method with a barrier, and
how pruning takes it away, can be seen without reading a number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from adaptcl.quantities import duration_unit
from adaptcl.records import RoundRecord, WorkerRecord, end_s
from adaptcl.report.comparisons.groups import RunGroup
from adaptcl.report.figures.palette import FAINT
from adaptcl.report.figures.pictures import ShownFigure
from adaptcl.report.saved_run import Run, clock_of

PHASES = ("send", "train", "receive", "wait")
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
_SEEN = 0.005  # a smaller share reads 0 %
_WORKER_INCHES = 0.17
_PANEL_INCHES = 0.75


@dataclass(frozen=True)
class TimelineBar:
    """One worker in one round, in seconds of the run's clock."""

    record: WorkerRecord
    round: int
    begin_s: float
    wait_s: float  # from the arrival of the update until the worker's waiting ends

    @property
    def seconds(self) -> tuple[float, float, float, float]:
        """The length of each phase, in the order of `PHASES`."""
        each = self.record
        return each.send_s, each.train_s, each.receive_s, self.wait_s

    @property
    def until_s(self) -> float:
        return self.begin_s + self.record.update_time_s + self.wait_s

    def phases(self) -> list[tuple[float, float]]:
        """The beginning and the length of each phase."""
        begins = accumulate(self.seconds, initial=self.begin_s)
        return list(zip(begins, self.seconds, strict=False))


def timeline_bars(rounds: Sequence[RoundRecord]) -> list[list[TimelineBar]]:
    return list(_backwards(rounds))[::-1]


def _backwards(rounds: Sequence[RoundRecord]) -> Iterator[list[TimelineBar]]:
    """The bars of each round, the last round first: how long a worker waits shows later."""
    next_begins: dict[int, float] = {}
    begins = [0.0, *(record.virtual_time_s for record in rounds)]
    for begin, record in reversed(list(zip(begins, rounds, strict=False))):
        has_barrier = any(each.begin_s is None for each in record.workers)
        for away in record.missing:
            next_begins.pop(away, None)
        bars = []
        for each in reversed(record.workers):
            starts = begin if each.begin_s is None else each.begin_s
            ends = starts + each.update_time_s
            closes = record.virtual_time_s if has_barrier else next_begins.get(each.worker, ends)
            bars.append(TimelineBar(each, record.round, starts, max(0.0, closes - ends)))
            next_begins[each.worker] = starts
        yield bars[::-1]


def waiting_share(bars: Sequence[Sequence[TimelineBar]]) -> float:
    """The share of all workers' time that they wait."""
    waits = math.fsum(bar.wait_s for of_round in bars for bar in of_round)
    works = math.fsum(bar.record.update_time_s for of_round in bars for bar in of_round)
    return waits / (waits + works) if waits else 0.0


def done_share(run: Run, bars: Sequence[Sequence[TimelineBar]]) -> float:
    """The share of a run that workers have after their last round, on average.

    With a barrier that is nothing: whoever is not there has not been drawn, or is away. In a run
    that goes on, or was ended early, workers are at tasks that no record tells of.
    """
    if run.summary is None or run.summary.stopped_by is not None:
        return 0.0
    until: dict[int, float] = {}
    for bar in (bar for of_round in bars for bar in of_round):
        if bar.record.begin_s is None:
            return 0.0
        until[bar.record.worker] = max(bar.until_s, until.get(bar.record.worker, 0.0))
    return 1 - fmean(until.values()) / max(until.values()) if until else 0.0


def chosen_workers(rounds: Sequence[RoundRecord], most: int) -> list[int]:
    """Workers to show, by number; of many an even choice by their first update time."""
    first: dict[int, float] = {}
    for record in rounds:
        for worker in record.workers:
            first.setdefault(worker.worker, worker.update_time_s)
    slow_to_fast = sorted(first, key=lambda worker: (-first[worker], worker))
    return sorted(slow_to_fast[place] for place in even_choice(len(first), most))


def even_choice(count: int, most: int) -> list[int]:
    """Up to `most` of `count` places, evenly spread, with the first and the last."""
    if count <= most:
        return list(range(count))
    step = (count - 1) / (most - 1)
    return sorted({round(number * step) for number in range(most)})


# The figure --------------------------------------------------------------------------------------


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
        if (share := done_share(run, bars)) >= _SEEN:
            waits += f" and are done {100 * share:.0f} % of the run"
        right.set_title(waits, loc="right", fontsize=10, fontweight="normal")
        left.set_ylabel("worker")
    clock = f"{clock_of(runs)} ({unit.unit.strip()})"
    panels[0][0].set_title("What each worker does")
    panels[-1][0].set(xlabel=f"{clock} from the start", xlim=(0, length / unit.scale))
    panels[-1][1].set(xlabel=f"{clock} before the end", xlim=(-length / unit.scale, 0))
    handles, labels = panels[0][0].get_legend_handles_labels()
    handles.append(Patch(facecolor="white", edgecolor=FAINT, linewidth=0.5))
    labels.append("done, away or cut off")
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
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
