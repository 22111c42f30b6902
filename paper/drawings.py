"""What can be drawn of a part's rows: each function fills one panel.

The first seed of a row is drawn strong, the others faint in the same colour. Where rows are of more
than one strategy, each has the look it has in every other figure; else they have a fixed series
that the colour-blind can tell apart, with other dashes for each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from adaptcl.report.palette import Look, looks
from adaptcl.report.runs import Run
from paper.experiment import Part
from paper.outcome import RowOutcome, outcome
from paper.profile import Profile
from paper.result import RunResult
from paper.store import Store

_SERIES = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a7a7a")
_WIDE, _NARROW = 2.2, 1.2
_CLIMB = 35.0
"""Points of accuracy below the best end that an accuracy axis begins."""
_FAR = 2.0
"""A run that takes longer than this many times all others' time is not drawn to its end."""
_DASHES: tuple[tuple[float, ...], ...] = ((), (5, 2), (1.5, 1.5), (6, 2, 1.5, 2))


@dataclass(frozen=True)
class Curve:
    """A row as it is drawn."""

    came: RowOutcome
    colour: str
    dashes: tuple[float, ...]

    @property
    def label(self) -> str:
        """Its entry in the legend."""
        return self.came.row.label

    @property
    def runs(self) -> list[RunResult]:
        """By seed."""
        return [pair.run for pair in self.came.pairs]


def curves(part: Part, store: Store) -> list[Curve]:
    """The rows of a part that there is anything to draw of."""
    outcomes = [outcome(part, row, store) for row in part.rows]
    strategies = [str(row.values["strategy"]) for row in part.rows]
    if len(set(strategies)) > 1:
        styles = [(look.colour, look.dashes) for look in _strategy_looks(strategies)]
    else:
        places = range(len(strategies))
        styles = [(_SERIES[p % len(_SERIES)], _DASHES[p % len(_DASHES)]) for p in places]
    return [
        Curve(came, colour, dashes)
        for came, (colour, dashes) in zip(outcomes, styles, strict=True)
        if came.pairs
    ]


def accuracy_over_time(axes: Axes, drawn: Sequence[Curve]) -> None:
    """Test accuracy by virtual time."""
    _accuracy(axes, drawn, lambda run: [each / 60 for each in run.course.virtual_time_s])
    axes.set(xlabel="virtual time (min)", ylabel="test accuracy (%)")
    axes.set_xlim(left=0)
    _cut_off_the_longest(axes, drawn)


def accuracy_over_rounds(axes: Axes, drawn: Sequence[Curve]) -> None:
    """Test accuracy by round, of methods with more rounds by the share of the whole run."""
    rounds = min(run.course.round[-1] for curve in drawn for run in curve.runs)
    _accuracy(
        axes,
        drawn,
        lambda run: [rounds * each / run.course.round[-1] for each in run.course.round],
    )
    axes.set(xlabel="round", ylabel="test accuracy (%)")
    axes.set_xlim(left=0)


def similarity(axes: Axes, drawn: Sequence[Curve]) -> None:
    """How alike the remaining networks of the paper's workers two and four are."""
    for curve in drawn:
        known = [
            (each.round, each.pair_similarity)
            for each in curve.runs[0].workers
            if each.pair_similarity is not None
        ]
        (line,) = axes.plot(
            [number for number, _ in known],
            [alike for _, alike in known],
            color=curve.colour,
            label=curve.label,
            marker="o",
            markersize=5,
        )
        _dash(line, curve)
    axes.set(xlabel="round of the pruning", ylabel="similarity of two workers' units")
    axes.set_ylim(0, 1.03)


def round_time(axes: Axes, drawn: Sequence[Curve]) -> None:
    """How long each round took."""
    for curve in drawn:
        course = curve.runs[0].course
        times = [b - a for a, b in pairwise((0.0, *course.virtual_time_s))]
        (line,) = axes.plot(course.round, times, color=curve.colour, label=curve.label)
        _dash(line, curve)
    axes.set(xlabel="round", ylabel="time of the round (s)")
    axes.set_title("Time of each round")
    _from_zero(axes)


def worker_times(axes: Axes, drawn: Sequence[Curve]) -> None:
    """Update times of the workers, from pruning to pruning, of the last row."""
    run = drawn[-1].runs[0]
    known = [each for each in run.workers if not any(each.pruned_rate)]
    count = len(known[0].update_time_s)
    for worker in range(count):
        axes.plot(
            [each.round for each in known],
            [each.update_time_s[worker] for each in known],
            color=_slow_to_fast(worker, count),
            drawstyle="steps-post",
            label=_worker_label(worker, count),
        )
    axes.set(xlabel="round", ylabel="update time (s)")
    axes.set_title(f"Update time of each worker: {drawn[-1].label}")
    _from_zero(axes)


def heterogeneity(axes: Axes, drawn: Sequence[Curve]) -> None:
    """H by round."""
    for curve in drawn:
        course = curve.runs[0].course
        known = [math.nan if each is None else each for each in course.heterogeneity]
        (line,) = axes.plot(course.round, known, color=curve.colour, label=curve.label)
        _dash(line, curve)
    axes.set(xlabel="round", ylabel="heterogeneity H")
    axes.set_ylim(0, 1)


def trade_off(axes: Axes, drawn: Sequence[Curve]) -> None:
    """Accuracy lost and time gained against a control parameter.

    A single test can fall into a bad round, so the accuracy is the mean of the last ones.
    """
    placed = [(c.came.row.x, c.came) for c in drawn if c.came.row.x is not None]
    xs = [x for x, _ in placed]
    deltas = [_mean(came.values("delta_late")) for _, came in placed]
    speed_ups = [_mean(came.values("speed_up")) for _, came in placed]
    axes.plot(xs, deltas, color=_SERIES[0], marker="o", label="ΔAcc, last tests (points, left)")
    axes.axhline(0, color="#8c8c8c", linewidth=0.8)
    axes.set_ylabel("ΔAcc against FedAVG-S (points)")
    right = axes.twinx()
    right.grid(visible=False)
    right.plot(xs, speed_ups, color=_SERIES[1], marker="s", linestyle="--")
    right.set_ylabel("speed-up (×)")
    right.set_ylim(bottom=1)
    axes.plot([], [], color=_SERIES[1], marker="s", linestyle="--", label="speed-up (right)")


def profiles(axes: Axes, measured: Sequence[Profile]) -> None:
    """Time of a training step against retention, as a share of the whole model's."""
    for place, each in enumerate(measured):
        axes.plot(
            [100 * kept for kept in each.retention],
            [seconds / each.seconds[0] for seconds in each.seconds],
            color=_SERIES[place % len(_SERIES)],
            marker="o",
            label=f"{each.provenance.device}, {each.provenance.precision}",
        )
    axes.set(xlabel="retention (% of the parameters)", ylabel="time of a step (whole model = 1)")
    axes.set_xlim(100, 0)
    axes.set_ylim(bottom=0)


def _accuracy(
    axes: Axes, drawn: Sequence[Curve], across: Callable[[RunResult], list[float]]
) -> None:
    for curve in drawn:
        for place, run in enumerate(curve.runs):
            points = [
                (x, 100 * accuracy)
                for x, accuracy in zip(across(run), run.course.accuracy, strict=True)
                if accuracy is not None
            ]
            (line,) = axes.plot(
                [x for x, _ in points],
                [y for _, y in points],
                color=curve.colour,
                label=curve.label if place == 0 else "_",
                alpha=1.0 if place == 0 else 0.35,
                linewidth=_WIDE if place == 0 else _NARROW,
            )
            _dash(line, curve)
            if place == 0:
                axes.plot(*points[-1], "o", color=curve.colour, markersize=6)
    _leave_out_the_beginning(axes, drawn)


def _leave_out_the_beginning(axes: Axes, drawn: Sequence[Curve]) -> None:
    """All methods climb alike at first; show where they part, and all of their ends."""
    ends = [100 * run.summary.accuracy for curve in drawn for run in curve.runs]
    axes.set_ylim(bottom=max(0.0, min(max(ends) - _CLIMB, min(ends) - 5)))


def _cut_off_the_longest(axes: Axes, drawn: Sequence[Curve]) -> None:
    """One method that takes far longer than all others must not squeeze them into a corner."""
    minutes = [max(run.course.virtual_time_s[-1] / 60 for run in curve.runs) for curve in drawn]
    *others, longest = sorted(minutes)
    if not others or longest <= _FAR * others[-1]:
        return
    axes.set_xlim(right=1.25 * others[-1])
    curve = drawn[minutes.index(longest)]
    end = 100 * curve.runs[0].summary.accuracy
    axes.text(
        0.99,
        0.02,
        f"{curve.label} ends at {longest:.0f} min with {end:.1f} %",
        transform=axes.transAxes,
        color=curve.colour,
        ha="right",
    )


def _from_zero(axes: Axes) -> None:
    axes.set_ylim(0, 1.05 * axes.dataLim.y1)


def _strategy_looks(strategies: Sequence[str]) -> list[Look]:
    """The colours that the strategies have in every other figure of AdaptCL."""
    return looks([Run(Path(), name, {"strategy": name}, (), None) for name in strategies])


def _dash(line: Line2D, curve: Curve) -> None:
    if curve.dashes:
        line.set_dashes(curve.dashes)


def _slow_to_fast(worker: int, count: int) -> tuple[float, float, float, float]:
    """Light for the slowest worker, dark for the fastest, none too pale for white."""
    share = worker / max(1, count - 1)
    return matplotlib.colormaps["plasma"](0.82 - 0.70 * share)


def _worker_label(worker: int, count: int) -> str:
    if worker == 0:
        return "slowest worker at first"
    return "fastest worker at first" if worker == count - 1 else "_"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")
