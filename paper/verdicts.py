"""The main claims, checked by arithmetic: each holds, does not hold, or is not decided yet."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from adaptcl.report.comparison import interval
from paper.experiment import Claim, Experiment
from paper.outcome import outcome
from paper.store import Store


@dataclass(frozen=True)
class Verdict:
    """What runs say about a claim."""

    claim: Claim
    deltas: tuple[float, ...]
    """Points above the baseline of the same seed, at the end of the run."""
    speed_ups: tuple[float, ...]
    averaged: tuple[float, ...] = ()
    """The same points between the means of the latest models, where they were measured."""
    fresh: tuple[float, ...] = ()
    """And between models with statistics measured anew."""

    @property
    def holds(self) -> bool | None:
        """Judged by means over seeds; None while there are too few."""
        if len(self.deltas) < self.claim.least_seeds:
            return None
        return (
            statistics.fmean(self.deltas) >= self.claim.least_delta
            and statistics.fmean(self.speed_ups) >= self.claim.least_speed_up
        )

    @property
    def interval(self) -> tuple[float, float] | None:
        """Where the points lie with 95 % confidence, seed against equal seed."""
        return interval(self.deltas)

    @property
    def words(self) -> str:
        """The verdict with its numbers, and how sure they are."""
        if not self.deltas:
            return "not run yet"
        each = f"by seed {', '.join(f'{delta:+.2f}' for delta in self.deltas)}"
        if (reach := self.interval) is not None:
            each = f"95 % interval {reach[0]:+.2f} to {reach[1]:+.2f}; {each}"
        seeds = f"{len(self.deltas)} of {self.claim.least_seeds} seeds"
        return (
            f"{self._judged()}: {statistics.fmean(self.deltas):+.2f} points ({each}), "
            f"{statistics.fmean(self.speed_ups):.2f}×, {seeds}"
            + self._beside("mean models", self.averaged)
            + self._beside("statistics measured anew", self.fresh)
        )

    def _judged(self) -> str:
        if self.holds and self.interval is not None and self.interval[0] < self.claim.least_delta:
            return (
                f"holds on the mean, but {len(self.deltas)} seeds cannot rule out "
                f"{self.interval[0]:+.2f}"
            )
        return {True: "holds", False: "does not hold", None: "not decided yet"}[self.holds]

    def _beside(self, what: str, deltas: Sequence[float]) -> str:
        if not deltas:
            return ""
        seeds = "" if len(deltas) == len(self.deltas) else f" ({len(deltas)} of these seeds)"
        return f"; {what} {statistics.fmean(deltas):+.2f}{seeds}"


def verdicts(experiments: Sequence[Experiment], store: Store) -> list[Verdict]:
    """All claims of some experiments, judged."""
    found = []
    for experiment in experiments:
        for claim in experiment.claims:
            part = experiment.part(claim.part)
            came = outcome(part, part.row(claim.row), store)
            columns = ("delta", "speed_up", "delta_averaged", "delta_fresh")
            found.append(Verdict(claim, *(tuple(came.values(column)) for column in columns)))
    return found
