"""Runs side by side, as numbers: equal time, speed-ups and intervals.

Groups of runs (`groups.py`) are compared with one of them, the baseline, in two ways: by their main
metric at the same time, and by the time they take to the value that the baseline ends with, or at
which all were to end. The same time is the earliest at which a curve ends: past the last of its
means a curve is flat, and would show a run that still learns worse than it is. Where runs were made
under several conditions, such as several σ, each has a baseline and a time. Values
are those of the learning curve, means of five tests. Each seed is compared with the same seed of
the baseline: whatever a seed does to both, by its data and its first model, cancels out. The 95 %
interval of a mean over seeds follows Student's t distribution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from adaptcl.errors import SettingError
from adaptcl.quantities import duration, short_duration
from adaptcl.records import TESTS, end_s
from adaptcl.report.comparisons.baselines import baselines_of
from adaptcl.report.comparisons.groups import RunGroup, group_runs
from adaptcl.report.comparisons.intervals import interval
from adaptcl.report.comparisons.labels import label_in_common
from adaptcl.report.comparisons.learning_curve import (
    LearningCurve,
    lasts_until,
    learning_curve,
    tests_of,
)
from adaptcl.report.saved_run import Run
from adaptcl.training.objectives.metrics import Measure


@dataclass(frozen=True)
class RunOutcome:
    """How one run compares with the baseline; None if unknown."""

    late_value: float | None  # the mean of the last five tests
    value_at_time: float | None = None
    """At the time at which all runs are compared; None if the run did not last so long."""
    gain: float | None = None  # how much better than the baseline's run of the same seed
    target_value: float | None = None
    """What the baseline ends with, or the value that the user asked for."""
    target_time_s: float | None = None  # when the run reached it; None if it never did
    speed_up: float | None = None
    """The time of the baseline to the target, divided by that of this run."""
    at_first_test: bool = False
    """Whether it reached the target at its first test: how much sooner, nobody knows."""
    flat_s: float = 0.0
    """How long before the time of comparison the last mean of the curve stands."""
    tests_by_then: int | None = None  # how many tests it had by that time; None if not compared
    paired: bool = False
    """Whether the baseline has a run of the same seed; if not, its mean stands in."""


def outcome_of(run: Run) -> RunOutcome:
    """The outcome of a run that is compared with nothing."""
    return RunOutcome(learning_curve(run.rounds, run.measure).last)


@dataclass(frozen=True)
class ComparisonRow:
    """A group of runs with the outcome of each."""

    group: RunGroup
    outcomes: tuple[RunOutcome, ...] = field(repr=False)
    baseline: RunGroup | None = None
    """What it is compared with; None if there is nothing to compare."""
    at_time_s: float | None = None
    """When values are compared: by default the earliest end of a curve with this baseline."""

    @property
    def is_baseline(self) -> bool:
        return self.group is self.baseline

    def numbers(self, name: str) -> list[float | None]:
        """A number of the summary of each run; None if it is unknown."""
        return [getattr(run.numbers, name, None) for run in self.group.runs]

    @property
    def early_tests(self) -> int | None:
        """How many tests it had when values are compared, if that was fewer than a mean takes."""
        known = [o.tests_by_then for o in self.outcomes if o.tests_by_then is not None]
        return min((count for count in known if count < TESTS), default=None)

    @property
    def speed_ups(self) -> list[float]:
        """Of the seeds that the baseline has too; of all if it has none of them.

        There are none if one of these seeds never reached the target: it may be the slowest, and
        a mean over the others would flatter.
        """
        counted = [each for each in self.outcomes if each.paired] or self.outcomes
        known = [each.speed_up for each in counted if each.speed_up is not None]
        return known if len(known) == len(counted) else []

    @property
    def speed_up(self) -> float | None:
        """The geometric mean: twice and half as fast come to equally fast."""
        return math.exp(fmean(map(math.log, self.speed_ups))) if self.speed_ups else None

    @property
    def speed_up_interval(self) -> tuple[float, float] | None:
        """The 95 % interval of that mean; None for fewer than two seeds."""
        bounds = interval([math.log(each) for each in self.speed_ups])
        return None if bounds is None else (math.exp(bounds[0]), math.exp(bounds[1]))

    @property
    def gains(self) -> list[float]:
        return [each.gain for each in self.outcomes if each.gain is not None]

    @property
    def target_times_s(self) -> list[float]:
        """Of the runs that reached the target."""
        return [each.target_time_s for each in self.outcomes if each.target_time_s is not None]

    @property
    def reached_by(self) -> str:
        """`2 of 3`, if only some of the runs reached the target; else empty."""
        reached, runs = len(self.target_times_s), len(self.outcomes)
        return f"{reached} of {runs}" if 0 < reached < runs else ""


@dataclass(frozen=True)
class Comparison:
    """Groups of runs, compared with baselines among them if there are several."""

    runs: tuple[Run, ...] = field(repr=False)
    rows: tuple[ComparisonRow, ...]
    over_seeds: bool
    asked_value: float | None = None
    """The target if one was asked for, here or of the runs; None: what the baseline ends with."""

    @property
    def measure(self) -> Measure:
        """The main metric of all runs."""
        return self.runs[0].measure if self.runs else Measure()

    @property
    def at_time_s(self) -> float | None:
        """The time at which values are compared; None if there is none, or one a baseline."""
        times = {row.at_time_s for row in self.rows}
        return times.pop() if len(times) == 1 else None

    @property
    def when(self) -> str:
        """That time in words."""
        return "equal time" if self.at_time_s is None else short_duration(self.at_time_s)

    @property
    def baselines(self) -> list[ComparisonRow]:
        """One for each of the conditions under which methods are compared."""
        return [row for row in self.rows if row.is_baseline]

    def by_baseline(self) -> list[Comparison]:
        """The rows of each baseline as a comparison of its own."""
        apart = []
        for baseline in self.baselines:
            rows = tuple(row for row in self.rows if row.baseline is baseline.group)
            runs = tuple(run for row in rows for run in row.group.runs)
            apart.append(replace(self, runs=runs, rows=rows))
        return apart

    @property
    def reference(self) -> str:
        """What the rows are compared with; empty if there is nothing to compare.

        Of several baselines it is what their labels have in common.
        """
        return label_in_common([row.group.label for row in self.baselines])

    @property
    def target(self) -> str:
        """The value that times are measured to, in words."""
        measure = self.measure
        if self.asked_value is not None:
            if measure.in_percent:
                return f"{100 * self.asked_value:g} %"
            return f"{measure.label} {self.asked_value:g}"
        return f"{self.reference}'s final {measure.label}" if self.baselines else ""

    @property
    def target_value(self) -> float | None:
        """The same as a number, the mean over the baseline's seeds; None if there are several."""
        if len(self.baselines) != 1:
            return None
        known = [each.target_value for each in self.baselines[0].outcomes]
        return fmean(each for each in known if each is not None) if None not in known else None


def compare(
    runs: Sequence[Run],
    *,
    over_seeds: bool | None = None,
    baseline: str | None = None,
    at_time_s: float | None = None,
    target: float | None = None,
) -> Comparison:
    """Compare runs one by one, or over seeds: by default over seeds if there are several.

    A baseline is named by strategy, label or folder; see `baselines.py`. A target for the main
    metric (an accuracy as a fraction) takes the place of what the baseline ends with.
    So does the target at which all the runs were to end, if one of them did: each stops a little
    above it, by chance. One run alone is compared with nothing, unless one of these is asked for.
    """
    if over_seeds is None:
        over_seeds = len({run.config.get("seed") for run in runs}) > 1
    groups = group_runs(runs, over_seeds=over_seeds)
    _refuse_other_metrics(runs)
    asks = any(each is not None for each in (baseline, at_time_s, target))
    if len(groups) < (1 if asks else 2):
        rows = [ComparisonRow(each, tuple(map(outcome_of, each.runs))) for each in groups]
        return Comparison(tuple(runs), tuple(rows), over_seeds)
    if at_time_s is not None:
        _refuse_no_time(groups, at_time_s)
    if target is None:
        target = _target_of_all(runs)
    theirs = baselines_of(groups, baseline)
    # What is compared with each other stands together.
    order = list(dict.fromkeys(map(id, theirs)))
    pairs = sorted(zip(groups, theirs, strict=True), key=lambda pair: order.index(id(pair[1])))
    rows = [
        _Baseline(base, at_time_s or _equal_time(groups, theirs, base), target).row_of(each)
        for each, base in pairs
    ]
    return Comparison(tuple(runs), tuple(rows), over_seeds, target)


def _refuse_other_metrics(runs: Sequence[Run]) -> None:
    """Nobody can say whether an accuracy is better than an error."""
    found = {run.measure: run.label for run in runs}
    if len(found) > 1:
        named = ", ".join(f"{measure.label} ({label})" for measure, label in found.items())
        raise SettingError(
            f"These runs have different main metrics: {named}; compare runs that have the same."
        )


def _target_of_all(runs: Sequence[Run]) -> float | None:
    targets = {run.target for run in runs}
    return targets.pop() if len(targets) == 1 and any(run.ended_by_target for run in runs) else None


def _equal_time(
    groups: Sequence[RunGroup], baselines: Sequence[RunGroup], baseline: RunGroup
) -> float:
    """The earliest end of a curve with this baseline; unfinished runs count only if all are."""
    pairs = zip(groups, baselines, strict=True)
    runs = [run for group, theirs in pairs if theirs is baseline for run in group.runs]
    counted = [run for run in runs if run.summary is not None] or runs
    curves = [learning_curve(run.rounds, run.measure) for run in counted]
    longest = max(end_s(run.rounds) for run in runs)
    return min((each.times_s[-1] for each in curves if each.times_s), default=longest)


def _refuse_no_time(groups: Sequence[RunGroup], asked_s: float) -> None:
    longest = max(end_s(run.rounds) for group in groups for run in group.runs)
    if not (asked_s > 0 and lasts_until(longest, asked_s)):
        raise SettingError(
            f"The time at which to compare is {duration(asked_s)}, but it must be above 0 and at "
            f"most {duration(longest)}, where the longest of these runs ends."
        )


class _Baseline:
    """The group that others are compared with, seed by seed."""

    def __init__(self, group: RunGroup, at_time_s: float, target: float | None) -> None:
        self.group = group
        self.at_time_s = at_time_s
        self._asked = target
        # What a run ends with is known at its end; a time to a given value before that.
        known = [run for run in group.runs if run.summary is not None or target is not None]
        self._curves: dict[object, list[LearningCurve]] = {}
        for run in known:
            self._curves.setdefault(run.config.get("seed"), []).append(
                learning_curve(run.rounds, run.measure)
            )

    def row_of(self, group: RunGroup) -> ComparisonRow:
        outcomes = tuple(map(self.outcome_of, group.runs))
        return ComparisonRow(group, outcomes, self.group, self.at_time_s)

    def outcome_of(self, run: Run) -> RunOutcome:
        curve = learning_curve(run.rounds, run.measure)
        same_seed = self._curves.get(run.config.get("seed"), [])
        theirs = same_seed or [each for curves in self._curves.values() for each in curves]
        target = self._asked
        if target is None:
            target = _mean([each.last for each in theirs])
        reached = None if target is None else curve.time_to(target)
        needed = None if target is None else _mean([each.time_to(target) for each in theirs])
        value = curve.at(self.at_time_s)
        beside = _mean([each.at(self.at_time_s) for each in same_seed])
        return RunOutcome(
            curve.last,
            value_at_time=value,
            gain=None if value is None or beside is None else run.measure.gain(value, beside),
            target_value=target,
            target_time_s=reached,
            speed_up=needed / reached if needed and reached else None,
            at_first_test=reached is not None and reached == curve.times_s[0],
            flat_s=0.0 if value is None else max(0.0, self.at_time_s - curve.times_s[-1]),
            tests_by_then=sum(test.time_s <= self.at_time_s for test in tests_of(run.rounds)),
            paired=bool(same_seed),
        )


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean of the known values."""
    known = [each for each in values if each is not None]
    return fmean(known) if known else None
