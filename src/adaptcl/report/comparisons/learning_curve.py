"""A run's main metric over time, as means of five tests: no claim rests on one test.

Each mean stands at the mean time of its tests. At their last it would lag behind the model by two
rounds, which is longer in a run with long rounds, and so favour one with short ones. The price is
that a mean holds tests from after its time; before the fifth test that can show, and a note says
so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

import numpy as np

from adaptcl.quantities import duration
from adaptcl.records import TESTS, RoundRecord, end_s
from adaptcl.training.objectives.metrics import Measure

_ROUNDING = 1e-9
"""85.55 % must reach 85.55 %, whatever rounding did to them."""


class TestResult(NamedTuple):
    """One test of a run's model."""

    round: int
    time_s: float
    value: float  # of the main metric


def lasts_until(end_s: float, time_s: float) -> bool:
    """Whether a time is not after an end, or reads the same: people write 6.1 s for 6.09 s."""
    return time_s <= end_s or duration(time_s) == duration(end_s)


def tests_of(rounds: Sequence[RoundRecord]) -> list[TestResult]:
    """The tests that tables and figures compare; a diverged model has none."""
    return [
        TestResult(each.round, each.virtual_time_s, each.main_value)
        for each in rounds
        if each.main_value is not None and math.isfinite(each.main_value)
    ]


@dataclass(frozen=True)
class LearningCurve:
    """Means of five tests, in the order of time, and when the run ended or where it stands."""

    times_s: tuple[float, ...]
    values: tuple[float, ...]
    end_s: float
    measure: Measure

    @property
    def last(self) -> float | None:
        """The mean of the last five tests."""
        return self.values[-1] if self.values else None

    def at(self, time_s: float) -> float | None:
        """The value at a time; None before the first test and after the end."""
        if not self.times_s or time_s < self.times_s[0] or not lasts_until(self.end_s, time_s):
            return None
        return float(np.interp(time_s, self.times_s, self.values))

    def time_to(self, target: float) -> float | None:
        """When the target was first reached, interpolated; None if it never was."""
        gains = [self.measure.gain(each, 0.0) for each in self.values]
        wanted = self.measure.gain(target, 0.0)
        reached = (n for n, each in enumerate(gains) if each > wanted - _ROUNDING)
        place = next(reached, None)
        if place is None:
            return None
        if place == 0:
            return self.times_s[0]
        around = slice(place - 1, place + 1)
        return float(np.interp(wanted, gains[around], self.times_s[around]))


def learning_curve(rounds: Sequence[RoundRecord], measure: Measure | None = None) -> LearningCurve:
    """The curve of a run, finished or not; `measure` is its main metric."""
    return curve_through(tests_of(rounds), end_s(rounds), measure)


def curve_through(
    tests: Sequence[TestResult], end_s: float, measure: Measure | None = None
) -> LearningCurve:
    """The curve of a run with these tests that ended, or stands, at a time."""
    windows = [tests[max(0, end - TESTS) : end] for end in range(1, len(tests) + 1)]
    return LearningCurve(
        tuple(fmean(test.time_s for test in window) for window in windows),
        tuple(fmean(test.value for test in window) for window in windows),
        end_s,
        measure or Measure(),
    )
