"""A run's accuracy over time, by means of five tests in a row, so that no claim rests on one test.

Each mean stands at the mean time of its tests. At their last it would lag behind the model by two
rounds, which is longer in a run with long rounds, and so favour one with short ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

import numpy as np

from adaptcl.records import RoundRecord

TESTS = 5
"""How many tests make one mean; the first means of a run have fewer."""
_ROUNDING = 1e-9
"""85.55 % must reach 85.55 %, and a run must last until its end, whatever rounding did to them."""


class MeasuredAccuracy(NamedTuple):
    """One test of a run's model."""

    round: int
    time_s: float
    accuracy: float


def measured_accuracies(rounds: Sequence[RoundRecord]) -> list[MeasuredAccuracy]:
    """The tests that tables and figures compare; a diverged model has none."""
    return [
        MeasuredAccuracy(each.round, each.virtual_time_s, each.accuracy)
        for each in rounds
        if each.accuracy is not None and math.isfinite(each.accuracy)
    ]


@dataclass(frozen=True)
class LearningCurve:
    """Means of five tests, in the order of time, and when the run ended or where it stands."""

    times_s: tuple[float, ...]
    accuracies: tuple[float, ...]
    end_s: float

    @property
    def last(self) -> float | None:
        """The mean of the last five tests."""
        return self.accuracies[-1] if self.accuracies else None

    def at(self, time_s: float) -> float | None:
        """The accuracy at a time; None before the first test and after the end."""
        lasts = time_s <= self.end_s * (1 + _ROUNDING)
        if not self.times_s or time_s < self.times_s[0] or not lasts:
            return None
        return float(np.interp(time_s, self.times_s, self.accuracies))

    def time_to(self, accuracy: float) -> float | None:
        """When the accuracy was first reached, interpolated; None if it never was."""
        reached = (n for n, each in enumerate(self.accuracies) if each > accuracy - _ROUNDING)
        place = next(reached, None)
        if place is None:
            return None
        if place == 0:
            return self.times_s[0]
        around = slice(place - 1, place + 1)
        return float(np.interp(accuracy, self.accuracies[around], self.times_s[around]))


def learning_curve(rounds: Sequence[RoundRecord]) -> LearningCurve:
    """The curve of a run, finished or not."""
    tests = measured_accuracies(rounds)
    windows = [tests[max(0, end - TESTS) : end] for end in range(1, len(tests) + 1)]
    return LearningCurve(
        tuple(fmean(test.time_s for test in window) for window in windows),
        tuple(fmean(test.accuracy for test in window) for window in windows),
        rounds[-1].virtual_time_s if rounds else 0.0,
    )
