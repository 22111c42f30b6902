"""Results as people read them: metrics, shares and counts in tables, figures and messages."""

from __future__ import annotations

import math
from collections.abc import Sequence

from adaptcl.quantities import ABSENT, Quantity
from adaptcl.training.objectives.metrics import Measure

PERCENT = Quantity(" %", 0.01, 2)
FACTOR = Quantity("×", digits=2)
HETEROGENEITY = Quantity("", digits=3)
ROUNDS = Quantity("", digits=0)


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


def number_of(number: int, thing: str) -> str:
    """`1 round`, `2 rounds`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def span(values: Sequence[float], dash: str = "–") -> str:
    """`0.33–1.00`, or one number if the lowest and the highest read the same."""
    if not values:
        return ABSENT
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low}{dash}{high}"
