"""How sure a mean over a few seeds is: its 95 % interval by Student's t distribution.

Two methods run with the same seeds are compared by their differences, seed by seed: what a seed
does to both of them, by its data and its first model, then cancels out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from adaptcl.records import RoundRecord, Summary, bytes_moved, first_and_last_heterogeneity
from adaptcl.report.labels import distinct_labels
from adaptcl.report.runs import Run, by_strategy

_FEW = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622)
"""What 97.5 % of the distribution lies below, with 1, 2, … degrees of freedom."""
_NORMAL = 1.959964
"""The same of the normal distribution, which it becomes with many."""


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Where the true mean lies with 95 % confidence; None where one value says nothing of that."""
    if len(values) < 2:
        return None
    mean = fmean(values)
    reach = t_quantile(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return mean - reach, mean + reach


def t_quantile(degrees: int) -> float:
    """The 0.975 quantile of Student's t distribution."""
    if degrees <= len(_FEW):
        return _FEW[degrees - 1]
    # Fisher's expansion around the normal quantile, in powers of 1 / degrees.
    z = _NORMAL
    return (
        z
        + (z**3 + z) / (4 * degrees)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * degrees**3)
    )


# What a run came to, finished or not: the numbers a comparison compares.
#
# A finished run's numbers are its summary's. Of an unfinished one, the rounds so far say the same
# things, except those that only the end can tell.


@dataclass(frozen=True)
class RunOutcome:
    """The numbers of one run; None where there is no telling."""

    finished: bool
    rounds: int
    accuracy: float | None = None
    best_accuracy: float | None = None
    best_time_s: float | None = None
    time_s: float | None = None
    params_saved: float | None = None
    flops_saved: float | None = None
    heterogeneity_first: float | None = None
    heterogeneity_last: float | None = None
    bytes_moved: int | None = None
    worst_class_accuracy: float | None = None
    least_worker_accuracy: float | None = None
    mean_worker_accuracy: float | None = None
    target_time_s: float | None = None
    """When the accuracy that was asked for was first reached; None also where it never was."""


def outcome(run: Run, target_accuracy: float | None = None) -> RunOutcome:
    """The numbers of a run as far as it came; the target is a fraction, as accuracies are."""
    known = _of_rounds(run.rounds) if run.summary is None else _of_summary(run.summary)
    if target_accuracy is None:
        return known
    return replace(known, target_time_s=_time_of(target_accuracy, run.rounds))


def _of_summary(summary: Summary) -> RunOutcome:
    return RunOutcome(
        finished=True,
        rounds=summary.rounds,
        accuracy=summary.accuracy,
        best_accuracy=summary.best_accuracy,
        best_time_s=summary.best_virtual_time_s,
        time_s=summary.virtual_time_s,
        params_saved=summary.params_saved,
        flops_saved=summary.flops_saved,
        heterogeneity_first=summary.heterogeneity_first,
        heterogeneity_last=summary.heterogeneity_last,
        bytes_moved=summary.bytes_sent + summary.bytes_received,
        worst_class_accuracy=summary.worst_class_accuracy,
        least_worker_accuracy=summary.least_worker_accuracy,
        mean_worker_accuracy=summary.mean_worker_accuracy,
    )


def _of_rounds(rounds: tuple[RoundRecord, ...]) -> RunOutcome:
    if not rounds:
        return RunOutcome(finished=False, rounds=0)
    measured = [(r.accuracy, r.virtual_time_s) for r in rounds if r.accuracy is not None]
    best, best_time = max(measured, key=lambda pair: pair[0], default=(None, None))
    retention = {w.worker: w.retention for record in rounds for w in record.workers}
    first, last = first_and_last_heterogeneity(r.heterogeneity for r in rounds)
    return RunOutcome(
        finished=False,
        rounds=rounds[-1].round,
        accuracy=measured[-1][0] if measured else None,
        best_accuracy=best,
        best_time_s=best_time,
        time_s=rounds[-1].virtual_time_s,
        params_saved=1 - fmean(retention.values()) if retention else None,
        heterogeneity_first=first,
        heterogeneity_last=last,
        bytes_moved=sum(bytes_moved(rounds)),
    )


def _time_of(target: float, rounds: tuple[RoundRecord, ...]) -> float | None:
    # What is 85.55 % must reach 85.55 %, however the two were divided by a hundred.
    reached = (
        r.virtual_time_s for r in rounds if r.accuracy is not None and r.accuracy > target - 1e-9
    )
    return next(reached, None)


# Runs told of as one: a single run, or all that differ only in their seed.

_NO_SETTING_OF_THE_METHOD = ("seed", "out")


@dataclass(frozen=True)
class RunGroup:
    """One row of a table and one line of a figure: a run, or a mean over several."""

    label: str
    runs: tuple[Run, ...]

    @property
    def first(self) -> Run:
        """The run that stands for the others in all that they share."""
        return self.runs[0]

    @property
    def prunes(self) -> bool:
        """Whether sub-models differed from worker to worker or over time in any of the runs."""
        return any(run.prunes for run in self.runs)

    @property
    def repeats_a_seed(self) -> bool:
        """Whether runs of it are one run, done again."""
        return len({run.config.get("seed") for run in self.runs}) < len(self.runs)


def groups(runs: Sequence[Run], *, over_seeds: bool = False) -> list[RunGroup]:
    """The runs one by one, or those together that differ only in their seed.

    Unfinished runs are left out of a group, unless there is nothing else to tell of.
    """
    if not over_seeds:
        return [RunGroup(run.label, (run,)) for run in distinct_labels(runs)]
    alike: dict[str, list[Run]] = {}
    for run in runs:
        settings = {k: v for k, v in run.config.items() if k not in _NO_SETTING_OF_THE_METHOD}
        alike.setdefault(json.dumps(settings, sort_keys=True, default=str), []).append(run)
    called = distinct_labels([together[0] for together in alike.values()])
    return [
        RunGroup(run.label, _counted(together))
        for run, together in zip(called, alike.values(), strict=True)
    ]


def _counted(runs: Sequence[Run]) -> tuple[Run, ...]:
    return tuple(run for run in runs if run.summary is not None) or (runs[0],)


# What a comparison says of each group of runs, as numbers: what table and CSV file are made of.

BASELINE_STRATEGY = "fedavg-s"


@dataclass(frozen=True)
class ComparisonRow:
    """A group of runs, with what each came to."""

    group: RunGroup
    outcomes: tuple[RunOutcome, ...]
    speed_ups: tuple[float | None, ...]
    """Of each run; one, and that 1, in the row that the others are held against."""
    gains: tuple[float, ...] = ()
    """Accuracy above that row's, as a fraction, for each seed that both have."""
    against: str = ""
    """The label of that row; empty in the row itself."""


def rows(
    runs: Sequence[Run], *, over_seeds: bool = False, target_accuracy: float | None = None
) -> list[ComparisonRow]:
    """One row a run, or one for all runs that differ only in their seed.

    With a `target_accuracy`, a fraction, outcomes say when it was reached.
    """
    together = groups(runs, over_seeds=over_seeds)
    if not together:
        return []
    outcomes = [tuple(outcome(run, target_accuracy) for run in g.runs) for g in together]
    chosen = baseline([group.first for group in together])
    place = next(place for place, group in enumerate(together) if group.first is chosen)
    held = together[place]
    times, accuracies = _times(held, outcomes[place]), _accuracies(held, outcomes[place])
    return [
        ComparisonRow(group, each, (1.0,))
        if group is held
        else ComparisonRow(
            group,
            each,
            _speed_ups(group, each, times),
            _gains(_accuracies(group, each), accuracies),
            held.label,
        )
        for group, each in zip(together, outcomes, strict=True)
    ]


def baseline(runs: Sequence[Run]) -> Run:
    """The run that speed-ups refer to, whatever the order of the different strategies.

    It is the first `fedavg-s`, else the first of the strategy that `adaptcl strategies` lists
    first.
    """
    ordered = by_strategy(runs)
    return next((run for run in ordered if run.strategy == BASELINE_STRATEGY), ordered[0])


def _times(group: RunGroup, outcomes: Sequence[RunOutcome]) -> dict[object, float]:
    """How long each finished run took, by its seed."""
    return {
        run.config.get("seed"): result.time_s
        for run, result in zip(group.runs, outcomes, strict=True)
        if result.finished and result.time_s
    }


def _accuracies(group: RunGroup, outcomes: Sequence[RunOutcome]) -> dict[object, float]:
    """Of finished runs by their seed; the mean where a seed was run several times."""
    found: dict[object, list[float]] = {}
    for run, result in zip(group.runs, outcomes, strict=True):
        if result.finished and result.accuracy is not None and math.isfinite(result.accuracy):
            found.setdefault(run.config.get("seed"), []).append(result.accuracy)
    return {seed: fmean(each) for seed, each in found.items()}


def _gains(own: dict[object, float], reference: dict[object, float]) -> tuple[float, ...]:
    return tuple(own[seed] - reference[seed] for seed in own if seed in reference)


def _speed_ups(
    group: RunGroup, outcomes: Sequence[RunOutcome], reference: dict[object, float]
) -> tuple[float | None, ...]:
    """Seed against equal seed where both rows have it, so that luck with data cancels out."""
    if not reference:
        return ()
    mean_time = sum(reference.values()) / len(reference)
    return tuple(
        reference.get(run.config.get("seed"), mean_time) / result.time_s
        if result.finished and result.time_s
        else None
        for run, result in zip(group.runs, outcomes, strict=True)
    )
