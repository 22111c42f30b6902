"""What a comparison says of each group of runs, as numbers: what table and CSV file are made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from adaptcl.report.groups import Group, groups
from adaptcl.report.outcome import Outcome, outcome
from adaptcl.report.runs import Run, by_strategy

BASELINE_STRATEGY = "fedavg-s"


@dataclass(frozen=True)
class Row:
    """A group of runs, with what each came to."""

    group: Group
    outcomes: tuple[Outcome, ...]
    speed_ups: tuple[float | None, ...]
    """Of each run; one, and that 1, in the row that the others are held against."""
    gains: tuple[float, ...] = ()
    """Accuracy above that row's, as a fraction, for each seed that both have."""
    against: str = ""
    """The label of that row; empty in the row itself."""


def rows(
    runs: Sequence[Run], *, over_seeds: bool = False, target_accuracy: float | None = None
) -> list[Row]:
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
        Row(group, each, (1.0,))
        if group is held
        else Row(
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


def _times(group: Group, outcomes: Sequence[Outcome]) -> dict[object, float]:
    """How long each finished run took, by its seed."""
    return {
        run.config.get("seed"): result.time_s
        for run, result in zip(group.runs, outcomes, strict=True)
        if result.finished and result.time_s
    }


def _accuracies(group: Group, outcomes: Sequence[Outcome]) -> dict[object, float]:
    """Of finished runs by their seed; the mean where a seed was run several times."""
    found: dict[object, list[float]] = {}
    for run, result in zip(group.runs, outcomes, strict=True):
        if result.finished and result.accuracy is not None and math.isfinite(result.accuracy):
            found.setdefault(run.config.get("seed"), []).append(result.accuracy)
    return {seed: fmean(each) for seed, each in found.items()}


def _gains(own: dict[object, float], reference: dict[object, float]) -> tuple[float, ...]:
    return tuple(own[seed] - reference[seed] for seed in own if seed in reference)


def _speed_ups(
    group: Group, outcomes: Sequence[Outcome], reference: dict[object, float]
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
