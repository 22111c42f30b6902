"""Figures of experiments, as SVG files: the same results always give the same bytes.

Each panel function draws one thing about the rows of a part. An accuracy is the mean of a row's
seeds in the band of their range. If the rows have several strategies, each strategy has the colour
it has in every other figure of AdaptCL.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from adaptcl.report.figures.drawing import figure_style, legend_below
from adaptcl.report.figures.palette import DASHES, FAINT, Look, looks
from adaptcl.report.figures.panels import slow_to_fast
from adaptcl.report.figures.pictures import image_of
from adaptcl.storage import written_whole
from paper.experiment import Part
from paper.outcomes import RowOutcome, find_outcome
from paper.profile import Profile
from paper.result import RunResult
from paper.store import Store

_SERIES_COLOURS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a7a7a")
"""For lines that are no strategies, such as the values of one setting."""
_PANEL = (6.0, 4.0)
"""The size of one panel in inches."""
_WIDE = 2.2
_CLIMB = 35.0
"""An accuracy axis begins at most this many points below the best end."""
_BAND = 0.2
"""How opaque the range of the seeds is."""
_SAME_TIME = 1.0
"""In minutes or rounds: ends that differ by less are the same."""
_FAR = 2.0
"""A run that takes more than this many times the others' time is not drawn to its end."""


@dataclass(frozen=True)
class RowCurve:
    """A row with the look in which it is drawn."""

    outcome: RowOutcome
    look: Look

    @property
    def label(self) -> str:
        return self.outcome.row.label

    @property
    def runs(self) -> list[RunResult]:
        """By seed."""
        return [compared.run for compared in self.outcome.runs]

    def plot(self, axes: Axes, xs: Sequence[float], ys: Sequence[float], **style: object) -> None:
        options: dict[str, object] = {"color": self.look.colour, "label": self.label, **style}
        (line,) = axes.plot(xs, ys, **options)  # type: ignore[arg-type]
        self.look.dash(line)


def draw_part(part: Part, store: Store, path: Path) -> Path | None:
    """Draw a part's figures side by side; None if there is nothing to draw."""
    curves = row_curves(part, store)
    if not curves or not part.figures:
        return None

    def fill(axes: Sequence[Axes]) -> None:
        for each, name in zip(axes, part.figures, strict=True):
            PANELS[name](each, curves)
            if name == "trade-off":
                each.set_xlabel(part.x_label)

    return _draw(len(part.figures), fill, path)


def draw_overview(parts: Sequence[Part], store: Store, path: Path) -> Path | None:
    """Draw accuracy over time of several parts side by side."""
    by_part = [row_curves(part, store) for part in parts]
    if not all(by_part):
        return None

    def fill(axes: Sequence[Axes]) -> None:
        for each, part, curves in zip(axes, parts, by_part, strict=True):
            _accuracy_over_time(each, curves)
            each.set_title(part.title)

    return _draw(len(parts), fill, path)


def draw_profiles(profiles: Sequence[Profile], path: Path) -> Path | None:
    """Draw training time by retention for each device."""
    if not profiles:
        return None
    return _draw(1, lambda axes: _profiles(axes[0], profiles), path)


def row_curves(part: Part, store: Store) -> list[RowCurve]:
    """The rows of a part that have a run."""
    strategies = [str(row.values["strategy"]) for row in part.rows]
    if len(set(strategies)) > 1:
        chosen = looks(strategies)
    else:
        chosen = [_series_look(place) for place in range(len(strategies))]
    outcomes = [find_outcome(part, row, store) for row in part.rows]
    return [
        RowCurve(outcome, look)
        for outcome, look in zip(outcomes, chosen, strict=True)
        if outcome.runs
    ]


def _series_look(place: int) -> Look:
    """The look of a line in a series that is not of strategies."""
    colour = _SERIES_COLOURS[place % len(_SERIES_COLOURS)]
    return Look(colour, DASHES[place % len(DASHES)])


def _draw(panels: int, fill: Callable[[Sequence[Axes]], None], path: Path) -> Path:
    with figure_style():
        figure = Figure(figsize=(_PANEL[0] * panels, _PANEL[1]), layout="constrained")
        axes = list(figure.subplots(1, panels, squeeze=False)[0])
        fill(axes)
        legend_below(figure, *axes, fixed_size=True)
        image = image_of(figure, "svg")
    with written_whole(path) as file:
        file.write(image)
    return path


def _accuracy_over_time(axes: Axes, curves: Sequence[RowCurve]) -> None:
    _accuracy(axes, curves, lambda run: [each / 60 for each in run.course.virtual_time_s])
    axes.set(xlabel="virtual time (min)", ylabel="test accuracy (%)")
    axes.set_xlim(left=0)
    _cut_off_the_longest(axes, curves)


def _accuracy_over_rounds(axes: Axes, curves: Sequence[RowCurve]) -> None:
    """By round; a method with more rounds is scaled to the others' number."""
    rounds = min(run.course.round[-1] for curve in curves for run in curve.runs)
    _accuracy(
        axes,
        curves,
        lambda run: [rounds * each / run.course.round[-1] for each in run.course.round],
    )
    axes.set(xlabel="round", ylabel="test accuracy (%)")
    axes.set_xlim(left=0)


def _similarity(axes: Axes, curves: Sequence[RowCurve]) -> None:
    """Similarity of the sub-models of the paper's workers two and four."""
    for curve in curves:
        known = [
            (each.round, each.pair_similarity)
            for each in curve.runs[0].workers
            if each.pair_similarity is not None
        ]
        rounds, values = [number for number, _ in known], [value for _, value in known]
        curve.plot(axes, rounds, values, marker="o", markersize=5)
    axes.set(xlabel="round of the pruning", ylabel="similarity of two workers' units")
    axes.set_ylim(0, 1.03)


def _round_time(axes: Axes, curves: Sequence[RowCurve]) -> None:
    for curve in curves:
        course = curve.runs[0].course
        curve.plot(axes, course.round, [b - a for a, b in pairwise((0.0, *course.virtual_time_s))])
    axes.set(xlabel="round", ylabel="time of the round (s)")
    axes.set_title("Time of each round")
    _begin_at_zero(axes)


def _worker_times(axes: Axes, curves: Sequence[RowCurve]) -> None:
    """Update times of the last row's workers, from pruning to pruning."""
    known = [each for each in curves[-1].runs[0].workers if not any(each.pruned_rate)]
    count = len(known[0].update_time_s)
    labels = {0: "slowest worker at first", count - 1: "fastest worker at first"}
    for worker in range(count):
        axes.plot(
            [each.round for each in known],
            [each.update_time_s[worker] for each in known],
            color=slow_to_fast(worker / max(1, count - 1)),
            drawstyle="steps-post",
            label=labels.get(worker, "_"),
        )
    axes.set(xlabel="round", ylabel="update time (s)")
    axes.set_title(f"Update time of each worker: {curves[-1].label}")
    _begin_at_zero(axes)


def _heterogeneity(axes: Axes, curves: Sequence[RowCurve]) -> None:
    for curve in curves:
        course = curve.runs[0].course
        known = [math.nan if each is None else each for each in course.heterogeneity]
        curve.plot(axes, course.round, known)
    axes.set(xlabel="round", ylabel="heterogeneity H")
    axes.set_ylim(0, 1)


def _trade_off(axes: Axes, curves: Sequence[RowCurve]) -> None:
    """Accuracy lost and time gained by a control parameter.

    The accuracy is the mean of the last tests, because a single test may fall into a bad round.
    """
    placed = [(c.outcome.row.x, c.outcome) for c in curves if c.outcome.row.x is not None]
    xs = [x for x, _ in placed]
    deltas = [_mean(outcome.values("delta_late")) for _, outcome in placed]
    speed_ups = [_mean(outcome.values("speed_up")) for _, outcome in placed]
    first, second = _series_look(0).colour, _series_look(1).colour
    axes.plot(xs, deltas, color=first, marker="o", label="ΔAcc, last tests (points, left)")
    axes.axhline(0, color=FAINT, linewidth=0.8)
    axes.set_ylabel("ΔAcc against FedAVG-S (points)")
    right = axes.twinx()
    right.grid(visible=False)
    right.plot(xs, speed_ups, color=second, marker="s", linestyle="--")
    right.set_ylabel("speed-up (×)")
    right.set_ylim(bottom=1)
    axes.plot([], [], color=second, marker="s", linestyle="--", label="speed-up (right)")


def _profiles(axes: Axes, profiles: Sequence[Profile]) -> None:
    for place, each in enumerate(profiles):
        axes.plot(
            [100 * kept for kept in each.retention],
            [seconds / each.seconds[0] for seconds in each.seconds],
            color=_series_look(place).colour,
            marker="o",
            label=f"{each.provenance.device}, {each.provenance.precision}",
        )
    axes.set(xlabel="retention (% of the parameters)", ylabel="time of a step (whole model = 1)")
    axes.set_xlim(100, 0)
    axes.set_ylim(bottom=0)


PANELS: dict[str, Callable[[Axes, Sequence[RowCurve]], None]] = {
    "accuracy-over-time": _accuracy_over_time,
    "accuracy-over-rounds": _accuracy_over_rounds,
    "similarity": _similarity,
    "round-time": _round_time,
    "worker-times": _worker_times,
    "heterogeneity": _heterogeneity,
    "trade-off": _trade_off,
}
"""The panels that an experiment's TOML file may name."""


def _accuracy(
    axes: Axes, curves: Sequence[RowCurve], across: Callable[[RunResult], list[float]]
) -> None:
    for curve in curves:
        tests = [_tests(run, across(run)) for run in curve.runs]
        # Runs of one row test at almost the same times, so the mean is taken at the first's.
        xs = [x for x in tests[0][0] if x <= min(each[-1] for each, _ in tests) + _SAME_TIME]
        heights = [np.interp(xs, *each) for each in tests]
        mean = np.mean(heights, axis=0)
        curve.plot(axes, xs, list(mean), linewidth=_WIDE)
        axes.plot(xs[-1], mean[-1], "o", color=curve.look.colour, markersize=6)
        if len(tests) > 1:
            bounds = np.min(heights, axis=0), np.max(heights, axis=0)
            axes.fill_between(xs, *bounds, color=curve.look.colour, alpha=_BAND, linewidth=0)
    _leave_out_the_beginning(axes, curves)


def _tests(run: RunResult, across: Sequence[float]) -> tuple[list[float], list[float]]:
    """Where on the axis a run was tested, and with what accuracy in per cent."""
    found = [
        (x, 100 * accuracy)
        for x, accuracy in zip(across, run.course.accuracy, strict=True)
        if accuracy is not None
    ]
    return [x for x, _ in found], [y for _, y in found]


def _leave_out_the_beginning(axes: Axes, curves: Sequence[RowCurve]) -> None:
    """Show where methods part, and all of their ends; at first all climb alike."""
    ends = [100 * run.summary.main_value for curve in curves for run in curve.runs]
    axes.set_ylim(bottom=max(0.0, min(max(ends) - _CLIMB, min(ends) - 5)))


def _cut_off_the_longest(axes: Axes, curves: Sequence[RowCurve]) -> None:
    """Keep a method that takes far longer from squeezing all others into a corner."""
    minutes = [max(run.course.virtual_time_s[-1] / 60 for run in curve.runs) for curve in curves]
    *others, longest = sorted(minutes)
    if not others or longest <= _FAR * others[-1]:
        return
    axes.set_xlim(right=1.25 * others[-1])
    curve = curves[minutes.index(longest)]
    end = 100 * fmean(run.summary.main_value for run in curve.runs)
    axes.text(
        0.99,
        0.02,
        f"{curve.label} ends at {longest:.0f} min with {end:.1f} %",
        transform=axes.transAxes,
        color=curve.look.colour,
        ha="right",
    )


def _begin_at_zero(axes: Axes) -> None:
    axes.set_ylim(0, 1.05 * axes.dataLim.y1)


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else math.nan
