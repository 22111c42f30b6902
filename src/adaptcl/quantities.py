"""Times, sizes and rates as people read them: one form for each, wherever something is printed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

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


_DURATIONS = (
    (0.0, Quantity(" s")),
    (1e-9, Quantity(" ms", 0.001)),  # small models on fast links take milliseconds
    (0.01, Quantity(" s", digits=3)),
    (1.0, Quantity(" s", digits=2)),
    (2.0, Quantity(" s")),
    (120.0, Quantity(" min", 60.0)),
    (7200.0, Quantity(" h", 3600.0)),
)
"""How a time is written from so many seconds on. A unit begins with two of it."""
_VOLUMES = (
    Quantity(" B", digits=0),
    Quantity(" KiB", 2.0**10),
    Quantity(" MiB", 2.0**20),
    Quantity(" GiB", 2.0**30),
)
_RATES = (
    Quantity(" B/s", digits=0),
    Quantity(" KiB/s", 2.0**10),
    Quantity(" MiB/s", 2.0**20),
)


def duration_unit(*seconds: float | None) -> Quantity:
    """Choose milliseconds, seconds, minutes or hours, by the longest."""
    longest = max((s for s in seconds if s is not None), default=0.0)
    fitting = (unit for least, unit in reversed(_DURATIONS) if longest >= least)
    return next(fitting, _DURATIONS[0][1])


def duration(*seconds: float | None) -> str:
    """`41.2 s`, `12.3 min`, `2.5 h`."""
    return duration_unit(*seconds).write(*seconds)


def short_duration(seconds: float) -> str:
    """`90 s`, `12.3 min`, `2 h`: a time that names something, such as a column."""
    number, _, unit = duration(seconds).rpartition(" ")
    return f"{number.rstrip('0').rstrip('.')} {unit}"


def volume(*counts: float | None) -> str:
    """`512 B`, `57.2 MiB`: powers of 1024, as in the paper."""
    return _largest_unit(_VOLUMES, counts).write(*counts)


def rate_unit(bytes_per_second: float) -> Quantity:
    """Choose what a link carries in a second: bytes, KiB or MiB."""
    return _largest_unit(_RATES, [bytes_per_second])


def from_to(unit_of: Callable[[float], Quantity], values: Sequence[float]) -> str:
    """`4.0 to 50.0 KiB/s`, `50.0 s to 2.5 min`, or one if the least and the largest read the same.

    The least has the unit of the largest unless fewer than two digits of it would be left.
    """
    least, most = min(values), max(values)
    unit = unit_of(most)
    high = unit.write(most)
    if least / unit.scale < 10 ** (1 - unit.digits):
        return f"{unit_of(least).write(least)} to {high}"
    low = unit.write(least)
    return high if low == high else f"{low.removesuffix(unit.unit)} to {high}"


def _largest_unit(units: Sequence[Quantity], values: Sequence[float | None]) -> Quantity:
    """The largest unit of which the largest value has at least one."""
    largest = max((each for each in values if each is not None), default=0)
    return next((each for each in reversed(units) if largest >= each.scale), units[0])
