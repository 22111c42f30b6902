"""How a quantity went in a group of runs: its mean over them, and the lowest and the highest."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from adaptcl.records import RoundRecord
from adaptcl.report.comparison import RunGroup
from adaptcl.report.runs import Run

Points = Mapping[float, float]
"""What one run has: a value for each round or time."""


@dataclass(frozen=True)
class MeanCurve:
    """Values over rounds or over time, of one run or of several."""

    x: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    def scaled(self, x_unit: float, unit: float) -> MeanCurve:
        """The same in other units."""
        values = ((each / unit for each in values) for values in (self.mean, self.low, self.high))
        return MeanCurve(tuple(each / x_unit for each in self.x), *map(tuple, values))


def accuracy_over_rounds(group: RunGroup) -> MeanCurve:
    """Accuracy by round, where all the runs were tested."""
    return _in_all([{r.round: a for r, a in _measured(run)} for run in group.runs])


def heterogeneity(group: RunGroup) -> MeanCurve:
    """H by round."""
    return _in_all(
        [
            {
                r.round: r.heterogeneity
                for r in run.rounds
                if r.heterogeneity is not None and math.isfinite(r.heterogeneity)
            }
            for run in group.runs
        ]
    )


def accuracy_over_time(group: RunGroup) -> MeanCurve:
    """Accuracy by time, each run between its own tests, as long as all of them go.

    It ends where the runs end in the mean, with the mean of their last accuracies.
    """
    runs = [
        {record.virtual_time_s: accuracy for record, accuracy in _measured(run)}
        for run in group.runs
    ]
    runs = [points for points in runs if points]
    if len(runs) < 2:
        return _in_all(runs)
    begin = max(min(points) for points in runs)
    end = min(max(points) for points in runs)
    # Clocks that agree but for the last digit of a sum make one point, not several.
    grid = sorted({round(t, 6): t for points in runs for t in points if begin <= t < end}.values())
    values = [np.interp(grid, list(points), list(points.values())) for points in runs]
    at_the_end = [list(points.values())[-1] for points in runs]
    columns = [*zip(*(each.tolist() for each in values), strict=True), at_the_end]
    return _course([*grid, fmean(max(points) for points in runs)], columns)


def update_times(group: RunGroup) -> dict[int, MeanCurve]:
    """Each worker's update time by round, over the runs in which it had that round.

    Of several updates in one round the last counts.
    """
    times: dict[int, dict[float, list[float]]] = {}
    for run in group.runs:
        for record in run.rounds:
            for worker, seconds in {w.worker: w.update_time_s for w in record.workers}.items():
                times.setdefault(worker, {}).setdefault(record.round, []).append(seconds)
    return {
        worker: _course(sorted(rounds), [rounds[number] for number in sorted(rounds)])
        for worker, rounds in times.items()
    }


def last_retention(group: RunGroup) -> dict[int, MeanCurve]:
    """The retention each worker ended with, as a course of one point."""
    kept: dict[int, list[float]] = {}
    for run in group.runs:
        last = {w.worker: w.retention for record in run.rounds for w in record.workers}
        for worker, retention in last.items():
            kept.setdefault(worker, []).append(retention)
    return {worker: _course([0], [values]) for worker, values in kept.items()}


def _measured(run: Run) -> list[tuple[RoundRecord, float]]:
    return [
        (record, record.accuracy)
        for record in run.rounds
        if record.accuracy is not None and math.isfinite(record.accuracy)
    ]


def _in_all(runs: Sequence[Points]) -> MeanCurve:
    """At the points that all runs have, those aside that have none."""
    known = [points for points in runs if points]
    shared = sorted(set.intersection(*map(set, known))) if known else []
    return _course(shared, [[points[x] for points in known] for x in shared])


def _course(x: Sequence[float], values: Sequence[Sequence[float]]) -> MeanCurve:
    """From the values of all runs at each point."""
    return MeanCurve(
        tuple(x), tuple(map(fmean, values)), tuple(map(min, values)), tuple(map(max, values))
    )
