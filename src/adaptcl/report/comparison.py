"""Runs side by side, as numbers: groups over seeds, savings, speed-ups and intervals.

A group is one run, or all runs that differ only in their seed. Groups are compared seed by seed:
whatever a seed does to both, by its data and its first model, cancels out. The 95 % interval of a
mean over seeds follows Student's t distribution.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from adaptcl.records import RoundRecord, Summary, bytes_moved, first_and_last_heterogeneity
from adaptcl.report.labels import distinct_labels
from adaptcl.report.saved_run import Run, by_strategy

BASELINE_STRATEGY = "fedavg-s"
_NOT_PART_OF_THE_METHOD = ("seed", "out")
_T_QUANTILES = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622)
"""The 0.975 quantiles of Student's t distribution with 1, 2, … degrees of freedom."""
_NORMAL_QUANTILE = 1.959964
"""The 0.975 quantile of the normal distribution, the limit for many degrees."""


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % confidence interval of the mean; None for fewer than two values."""
    if len(values) < 2:
        return None
    mean = fmean(values)
    reach = t_quantile(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return mean - reach, mean + reach


def t_quantile(degrees: int) -> float:
    """The 0.975 quantile of Student's t distribution."""
    if degrees <= len(_T_QUANTILES):
        return _T_QUANTILES[degrees - 1]
    # Fisher's expansion around the normal quantile, in powers of 1 / degrees.
    z = _NORMAL_QUANTILE
    return (
        z
        + (z**3 + z) / (4 * degrees)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * degrees**3)
    )


@dataclass(frozen=True)
class RunOutcome:
    """The numbers of one run; None if unknown.

    A finished run's numbers come from its summary. For an unfinished run its rounds give all but
    those that only the end can tell.
    """

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
    """When the target accuracy was first measured; None if it never was."""


def outcome_of(run: Run, target_accuracy: float | None = None) -> RunOutcome:
    """The numbers of a run so far; the target accuracy is a fraction."""
    known = _of_rounds(run.rounds) if run.summary is None else _of_summary(run.summary)
    if target_accuracy is None:
        return known
    return replace(known, target_time_s=_time_to(target_accuracy, run.rounds))


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


def _time_to(target: float, rounds: tuple[RoundRecord, ...]) -> float | None:
    # 85.55 % must reach 85.55 %, whatever rounding the division by 100 did.
    reached = (
        r.virtual_time_s for r in rounds if r.accuracy is not None and r.accuracy > target - 1e-9
    )
    return next(reached, None)


@dataclass(frozen=True)
class RunGroup:
    """One row of a table and one line of a figure: one run, or several seeds."""

    label: str
    runs: tuple[Run, ...]

    @property
    def first(self) -> Run:
        return self.runs[0]

    @property
    def prunes(self) -> bool:
        """Whether sub-models differ between workers or over time in any of the runs."""
        return any(run.prunes for run in self.runs)

    @property
    def repeats_a_seed(self) -> bool:
        """Whether two of the runs have the same seed."""
        return len({run.config.get("seed") for run in self.runs}) < len(self.runs)


def group_runs(runs: Sequence[Run], *, over_seeds: bool = False) -> list[RunGroup]:
    """Group runs one by one, or over seeds those that differ only in their seed.

    An unfinished run is in a group only if the group has no finished one.
    """
    if not over_seeds:
        return [RunGroup(run.label, (run,)) for run in distinct_labels(runs)]
    alike: dict[str, list[Run]] = {}
    for run in runs:
        settings = {k: v for k, v in run.config.items() if k not in _NOT_PART_OF_THE_METHOD}
        alike.setdefault(json.dumps(settings, sort_keys=True, default=str), []).append(run)
    labelled = distinct_labels([together[0] for together in alike.values()])
    return [
        RunGroup(run.label, _finished_or_first(together))
        for run, together in zip(labelled, alike.values(), strict=True)
    ]


def _finished_or_first(runs: Sequence[Run]) -> tuple[Run, ...]:
    return tuple(run for run in runs if run.summary is not None) or (runs[0],)


@dataclass(frozen=True)
class ComparisonRow:
    """A group of runs with the outcome of each, compared with the baseline's group."""

    group: RunGroup
    outcomes: tuple[RunOutcome, ...]
    speed_ups: tuple[float | None, ...]
    """Of each run over the baseline; a single 1 in the baseline's row."""
    gains: tuple[float, ...] = ()
    """Accuracy above the baseline's, as a fraction, for each seed that both have."""
    against: str = ""
    """The label of the baseline's row; empty in that row."""


def comparison_rows(
    runs: Sequence[Run], *, over_seeds: bool = False, target_accuracy: float | None = None
) -> list[ComparisonRow]:
    """One row a run, or over seeds one row for all runs that differ only in their seed."""
    together = group_runs(runs, over_seeds=over_seeds)
    if not together:
        return []
    outcomes = [tuple(outcome_of(run, target_accuracy) for run in g.runs) for g in together]
    chosen = choose_baseline([group.first for group in together])
    place = next(place for place, group in enumerate(together) if group.first is chosen)
    reference = together[place]
    times, accuracies = _times(reference, outcomes[place]), _accuracies(reference, outcomes[place])
    return [
        ComparisonRow(group, each, (1.0,))
        if group is reference
        else ComparisonRow(
            group,
            each,
            _speed_ups(group, each, times),
            _gains(_accuracies(group, each), accuracies),
            reference.label,
        )
        for group, each in zip(together, outcomes, strict=True)
    ]


def choose_baseline(runs: Sequence[Run]) -> Run:
    """The run that speed-ups refer to, whatever the order of the runs.

    It is the first `fedavg-s`, else the first run of the strategy that `adaptcl strategies` lists
    first.
    """
    ordered = by_strategy(runs)
    return next((run for run in ordered if run.strategy == BASELINE_STRATEGY), ordered[0])


def _times(group: RunGroup, outcomes: Sequence[RunOutcome]) -> dict[object, float]:
    return {
        run.config.get("seed"): result.time_s
        for run, result in zip(group.runs, outcomes, strict=True)
        if result.finished and result.time_s
    }


def _accuracies(group: RunGroup, outcomes: Sequence[RunOutcome]) -> dict[object, float]:
    """Accuracies of finished runs by seed; the mean if a seed was run several times."""
    found: dict[object, list[float]] = {}
    for run, result in zip(group.runs, outcomes, strict=True):
        if result.finished and result.accuracy is not None and math.isfinite(result.accuracy):
            found.setdefault(run.config.get("seed"), []).append(result.accuracy)
    return {seed: fmean(each) for seed, each in found.items()}


def _gains(accuracies: dict[object, float], reference: dict[object, float]) -> tuple[float, ...]:
    return tuple(accuracies[seed] - reference[seed] for seed in accuracies if seed in reference)


def _speed_ups(
    group: RunGroup, outcomes: Sequence[RunOutcome], reference: dict[object, float]
) -> tuple[float | None, ...]:
    """Compare equal seeds where both rows have them; else use the baseline's mean time."""
    if not reference:
        return ()
    mean_time = sum(reference.values()) / len(reference)
    return tuple(
        reference.get(run.config.get("seed"), mean_time) / result.time_s
        if result.finished and result.time_s
        else None
        for run, result in zip(group.runs, outcomes, strict=True)
    )
