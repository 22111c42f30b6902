"""What a run came to, finished or not: the numbers a comparison compares.

A finished run's numbers are its summary's. Of an unfinished one, the rounds so far say the same
things, except those that only the end can tell.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import fmean

from adaptcl.records import RoundRecord, Summary, bytes_moved, first_and_last_heterogeneity
from adaptcl.report.runs import Run


@dataclass(frozen=True)
class Outcome:
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


def outcome(run: Run, target_accuracy: float | None = None) -> Outcome:
    """The numbers of a run as far as it came; the target is a fraction, as accuracies are."""
    known = _of_rounds(run.rounds) if run.summary is None else _of_summary(run.summary)
    if target_accuracy is None:
        return known
    return replace(known, target_time_s=_time_of(target_accuracy, run.rounds))


def _of_summary(summary: Summary) -> Outcome:
    return Outcome(
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


def _of_rounds(rounds: tuple[RoundRecord, ...]) -> Outcome:
    if not rounds:
        return Outcome(finished=False, rounds=0)
    measured = [(r.accuracy, r.virtual_time_s) for r in rounds if r.accuracy is not None]
    best, best_time = max(measured, key=lambda pair: pair[0], default=(None, None))
    retention = {w.worker: w.retention for record in rounds for w in record.workers}
    first, last = first_and_last_heterogeneity(r.heterogeneity for r in rounds)
    return Outcome(
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
