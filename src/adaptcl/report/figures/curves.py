"""Curves of a group of runs: the mean over its runs, the lowest and the highest."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from adaptcl.records import RoundRecord
from adaptcl.report.comparisons.groups import RunGroup
from adaptcl.report.comparisons.learning_curve import tests_of

Points = Mapping[float, float]  # the values of one run by round or time


@dataclass(frozen=True)
class MeanCurve:
    """Values over rounds or over time, for one run or several."""

    x: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    def scaled(self, x_unit: float, unit: float) -> MeanCurve:
        values = ((each / unit for each in values) for values in (self.mean, self.low, self.high))
        return MeanCurve(tuple(each / x_unit for each in self.x), *map(tuple, values))


def by_round(group: RunGroup, value_of: Callable[[RoundRecord], float | None]) -> MeanCurve:
    """A value of the records, for rounds in which all runs have it."""
    return _at_shared_points(
        [
            {
                record.round: value
                for record in run.rounds
                if (value := value_of(record)) is not None and math.isfinite(value)
            }
            for run in group.runs
        ]
    )


def metric_over_time(group: RunGroup) -> MeanCurve:
    """The main metric by time, interpolated between each run's tests while all runs last.

    The curve ends at the mean of the runs' ends, with the mean of their last values.
    """
    runs = [{test.time_s: test.value for test in tests_of(run.rounds)} for run in group.runs]
    runs = [points for points in runs if points]
    if len(runs) < 2:
        return _at_shared_points(runs)
    begin = max(min(points) for points in runs)
    end = min(max(points) for points in runs)
    # Clocks that agree up to rounding make one point, not several.
    grid = sorted({round(t, 6): t for points in runs for t in points if begin <= t < end}.values())
    values = [np.interp(grid, list(points), list(points.values())) for points in runs]
    at_the_end = [list(points.values())[-1] for points in runs]
    columns = [*zip(*(each.tolist() for each in values), strict=True), at_the_end]
    return _mean_curve([*grid, fmean(max(points) for points in runs)], columns)


def update_times(group: RunGroup) -> dict[int, MeanCurve]:
    """Each worker's update time by round, over the runs in which it took part in that round.

    If a worker has several updates in a round, the last counts.
    """
    return by_worker(group, lambda record: {w.worker: w.update_time_s for w in record.workers})


def by_worker(
    group: RunGroup, values_of: Callable[[RoundRecord], Mapping[int, float]]
) -> dict[int, MeanCurve]:
    """A value of each worker by round, for rounds in which any run has it."""
    found: dict[int, dict[float, list[float]]] = {}
    for run in group.runs:
        for record in run.rounds:
            for worker, value in values_of(record).items():
                found.setdefault(worker, {}).setdefault(record.round, []).append(value)
    return {
        worker: _mean_curve(sorted(rounds), [rounds[number] for number in sorted(rounds)])
        for worker, rounds in found.items()
    }


def last_retention(group: RunGroup) -> dict[int, MeanCurve]:
    """Each worker's retention at the end, as a curve of one point."""
    kept: dict[int, list[float]] = {}
    for run in group.runs:
        last = {w.worker: w.retention for record in run.rounds for w in record.workers}
        for worker, retention in last.items():
            kept.setdefault(worker, []).append(retention)
    return {worker: _mean_curve([0], [values]) for worker, values in kept.items()}


def _at_shared_points(runs: Sequence[Points]) -> MeanCurve:
    """The mean at points that all runs have; runs without any point do not count."""
    known = [points for points in runs if points]
    shared = sorted(set.intersection(*map(set, known))) if known else []
    return _mean_curve(shared, [[points[x] for points in known] for x in shared])


def _mean_curve(x: Sequence[float], values: Sequence[Sequence[float]]) -> MeanCurve:
    return MeanCurve(
        tuple(x), tuple(map(fmean, values)), tuple(map(min, values)), tuple(map(max, values))
    )
