"""Numbers as people read them: one form for each quantity in tables, figures and messages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from adaptcl.training.objectives.metrics import Measure

ABSENT = "–"  # stands for an unknown number


@dataclass(frozen=True)
class Quantity:
    """How one kind of number is scaled and written, alone or as a mean over several runs."""

    unit: str
    scale: float = 1.0  # one of the unit, in the unit of the raw number
    digits: int = 1

    def write(self, *values: float | None) -> str:
        """Write one number as it is, several as `mean ± standard deviation`."""
        known = [v / self.scale for v in values if v is not None and math.isfinite(v)]
        if not known:
            return ABSENT
        lowest, mean, highest = (
            f"{each:.{self.digits}f}" for each in (min(known), fmean(known), max(known))
        )
        if lowest == highest:
            return f"{mean}{self.unit}"
        return f"{mean} ± {stdev(known):.{self.digits}f}{self.unit}"


PERCENT = Quantity(" %", 0.01, 2)
FACTOR = Quantity("×", digits=2)
HETEROGENEITY = Quantity("", digits=3)
ROUNDS = Quantity("", digits=0)
_DURATIONS = (Quantity(" s"), Quantity(" min", 60.0), Quantity(" h", 3600.0))
_MILLISECONDS = Quantity(" s", digits=3)
_VOLUMES = (
    Quantity(" B", digits=0),
    Quantity(" KiB", 2.0**10),
    Quantity(" MiB", 2.0**20),
    Quantity(" GiB", 2.0**30),
)


def metric_quantity(measure: Measure, *values: float | None) -> Quantity:
    """How values of a metric are written: shares in per cent, others with four digits."""
    if measure.in_percent:
        return PERCENT
    largest = max((abs(v) for v in values if v is not None and math.isfinite(v)), default=1.0)
    before = math.floor(math.log10(largest)) + 1 if largest > 0 else 1
    return Quantity("", digits=min(max(4 - before, 0), 6))


def axis_label(measure: Measure) -> str:
    """`test accuracy (%)`, `test RMSE`."""
    return f"test {measure.label}" + (" (%)" if measure.in_percent else "")


def metric_span(measure: Measure, values: Sequence[float]) -> str:
    """`62.5 % to 70.1 %`, or one value if the lowest and the highest read the same."""
    if not values:
        return ABSENT
    low, high = measure.write(min(values)), measure.write(max(values))
    return low if low == high else f"{low} to {high}"


def duration_unit(*seconds: float | None) -> Quantity:
    """Choose seconds, minutes or hours: the largest unit the longest has at least two of.

    Small models on fast links take milliseconds, of which one digit of a second shows nothing.
    """
    longest = max((s for s in seconds if s is not None), default=0.0)
    if 0 < longest < _DURATIONS[0].scale * 2:
        return _MILLISECONDS
    return next((m for m in reversed(_DURATIONS) if longest >= 2 * m.scale), _DURATIONS[0])


def duration(*seconds: float | None) -> str:
    """`41.2 s`, `12.3 min`, `2.5 h`."""
    return duration_unit(*seconds).write(*seconds)


def short_duration(seconds: float) -> str:
    """`90 s`, `12.3 min`, `2 h`: a time that names something, such as a column."""
    return duration(seconds).replace(".0 ", " ")


def volume(*counts: float | None) -> str:
    """`512 B`, `57.2 MiB`: powers of 1024, as in the paper."""
    largest = max((c for c in counts if c is not None), default=0)
    measure = next((m for m in reversed(_VOLUMES) if largest >= m.scale), _VOLUMES[0])
    return measure.write(*counts)


def number_of(number: int, thing: str) -> str:
    """`1 round`, `2 rounds`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def span(values: Sequence[float], dash: str = "–") -> str:
    """`0.33–1.00`, or one number if the lowest and the highest read the same."""
    if not values:
        return ABSENT
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low}{dash}{high}"
