"""The runs of each row beside their baselines, and what they say about the claims."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from adaptcl.report.comparisons.intervals import interval
from paper.columns import COLUMNS, ComparedRun
from paper.experiment import Claim, Experiment, ExperimentRow, Part
from paper.store import Store

NOT_RUN = "not run yet"


@dataclass(frozen=True)
class RowOutcome:
    """The runs that exist of a row, by seed."""

    row: ExperimentRow
    runs: tuple[ComparedRun, ...]

    def values(self, column: str) -> list[float]:
        """A column's values by seed, without seeds for which it has none."""
        value = COLUMNS[column].value
        found = [value(compared) for compared in self.runs]
        return [each for each in found if each is not None]


def find_outcome(part: Part, row: ExperimentRow, store: Store) -> RowOutcome:
    baseline, until = part.baseline_of(row), _shortest_s(part, store)
    found = []
    for seed in row.seeds:
        run = store.find(row.config(seed))
        other = store.find(baseline.config(seed)) if baseline else None
        if run is not None:
            found.append(ComparedRun(run, other, until))
    return RowOutcome(row, tuple(found))


def _shortest_s(part: Part, store: Store) -> float:
    """When the shortest run of a part ends."""
    runs = (store.find(row.config(seed)) for row in part.rows for seed in row.seeds)
    return min((run.summary.virtual_time_s for run in runs if run is not None), default=math.inf)


@dataclass(frozen=True)
class Verdict:
    """Whether a claim holds, by means over seeds."""

    claim: Claim
    deltas: tuple[float, ...]
    """By seed, points above the baseline, in the claim's column."""
    speed_ups: tuple[float, ...]
    """Of the seeds that have one; a run may never reach its baseline's accuracy."""
    averaged: tuple[float, ...] = ()
    """The same points between the means of the latest models, if measured."""
    fresh: tuple[float, ...] = ()
    """The same points between models with fresh batch-norm statistics, if measured."""

    @property
    def holds(self) -> bool | None:
        """None while there are too few seeds."""
        if len(self.deltas) < self.claim.least_seeds:
            return None
        return (
            fmean(self.deltas) >= self.claim.least_delta
            and len(self.speed_ups) == len(self.deltas)
            and fmean(self.speed_ups) >= self.claim.least_speed_up
        )

    @property
    def words(self) -> str:
        """The verdict with its numbers and their 95 % interval."""
        if not self.deltas:
            return NOT_RUN
        each = f"by seed {', '.join(f'{delta:+.2f}' for delta in self.deltas)}"
        bounds = interval(self.deltas)
        if bounds is not None:
            each = f"95 % interval {bounds[0]:+.2f} to {bounds[1]:+.2f}; {each}"
        seeds = f"{len(self.deltas)} of {self.claim.least_seeds} seeds"
        return (
            f"{self._judgement(bounds)}: {fmean(self.deltas):+.2f} points ({each}), "
            f"{self._speed_up()}, {seeds}"
            + self._aside("mean models", self.averaged)
            + self._aside("statistics measured anew", self.fresh)
        )

    def _judgement(self, bounds: tuple[float, float] | None) -> str:
        if self.holds and bounds is not None and bounds[0] < self.claim.least_delta:
            seeds = len(self.deltas)
            return f"holds on the mean, but {seeds} seeds cannot rule out {bounds[0]:+.2f}"
        return {True: "holds", False: "does not hold", None: "not decided yet"}[self.holds]

    def _speed_up(self) -> str:
        reached = len(self.speed_ups)
        if reached == len(self.deltas):
            return f"{fmean(self.speed_ups):.2f}×"
        found = f"{fmean(self.speed_ups):.2f}× on the mean of {reached}, " if reached else ""
        return f"{found}{len(self.deltas) - reached} never reach the baseline's accuracy"

    def _aside(self, what: str, deltas: Sequence[float]) -> str:
        if not deltas:
            return ""
        seeds = "" if len(deltas) == len(self.deltas) else f" ({len(deltas)} of these seeds)"
        return f"; {what} {fmean(deltas):+.2f}{seeds}"


def judge_claims(experiments: Sequence[Experiment], store: Store) -> list[Verdict]:
    found = []
    for experiment in experiments:
        for claim in experiment.claims:
            part = experiment.part(claim.part)
            outcome = find_outcome(part, part.row(claim.row), store)
            asides = ("delta_averaged", "delta_fresh") if claim.is_at_the_end else ()
            columns = (claim.delta, claim.speed_up, *asides)
            found.append(Verdict(claim, *(tuple(outcome.values(column)) for column in columns)))
    return found
