"""Numbers as people read them: one form for each quantity, in tables, figures and on screen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from adaptcl.report.comparison import interval

ABSENT = "–"
"""Stands where a number is not known."""


@dataclass(frozen=True)
class Quantity:
    """How one kind of number is scaled and written, alone or as a mean over several runs."""

    unit: str
    scale: float = 1.0
    """What one of the unit is worth in the number's own unit."""
    digits: int = 1

    def write(self, *values: float | None) -> str:
        """One number as it is; several as `mean ± standard deviation (lowest–highest)`."""
        known = [v / self.scale for v in values if v is not None and math.isfinite(v)]
        if not known:
            return ABSENT
        low, high = (f"{v:.{self.digits}f}" for v in (min(known), max(known)))
        if low == high:
            return f"{low}{self.unit}"
        mean, deviation = (f"{v:.{self.digits}f}" for v in (fmean(known), stdev(known)))
        return f"{mean} ± {deviation} ({low}–{high}){self.unit}"


PERCENT = Quantity(" %", 0.01, 2)
FACTOR = Quantity("×", digits=2)
HETEROGENEITY = Quantity("", digits=3)
_DURATIONS = (Quantity(" s"), Quantity(" min", 60.0), Quantity(" h", 3600.0))
_VOLUMES = (
    Quantity(" B", digits=0),
    Quantity(" KiB", 2.0**10),
    Quantity(" MiB", 2.0**20),
    Quantity(" GiB", 2.0**30),
)


def duration_measure(*seconds: float | None) -> Quantity:
    """Seconds, minutes or hours, as suits the longest: the largest unit it holds two of."""
    longest = max((s for s in seconds if s is not None), default=0.0)
    return next((m for m in reversed(_DURATIONS) if longest >= 2 * m.scale), _DURATIONS[0])


def duration(*seconds: float | None) -> str:
    """`41.2 s`, `12.3 min`, `2.5 h`."""
    return duration_measure(*seconds).write(*seconds)


def volume(*counts: int | None) -> str:
    """`512 B`, `57.2 MiB`: powers of 1024, as the paper's sizes are."""
    largest = max((c for c in counts if c is not None), default=0)
    measure = next((m for m in reversed(_VOLUMES) if largest >= m.scale), _VOLUMES[0])
    return measure.write(*counts)


def gain(*fractions: float) -> str:
    """`+1.20 (-0.35 to +2.75)`: in points, a mean difference and its 95 % interval."""
    if not fractions:
        return ABSENT
    points = [100 * each for each in fractions]
    reach = interval(points)
    mean = f"{fmean(points):+.2f}"
    return mean if reach is None else f"{mean} ({reach[0]:+.2f} to {reach[1]:+.2f})"


def number_of(number: int | str, thing: str) -> str:
    """`1 round`, `2 rounds`, `? rounds` where nobody knows."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def span(values: Sequence[float], dash: str = "–") -> str:
    """`0.33–1.00`, or one number where lowest and highest are written alike."""
    if not values:
        return ABSENT
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low}{dash}{high}"
