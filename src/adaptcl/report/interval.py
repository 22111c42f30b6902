"""How sure a mean over a few seeds is: its 95 % interval by Student's t distribution.

Two methods run with the same seeds are compared by their differences, seed by seed: what a seed
does to both of them, by its data and its first model, then cancels out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

_FEW = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622)
"""What 97.5 % of the distribution lies below, with 1, 2, … degrees of freedom."""
_NORMAL = 1.959964
"""The same of the normal distribution, which it becomes with many."""


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Where the true mean lies with 95 % confidence; None where one value says nothing of that."""
    if len(values) < 2:
        return None
    mean = fmean(values)
    reach = t_quantile(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return mean - reach, mean + reach


def t_quantile(degrees: int) -> float:
    """The 0.975 quantile of Student's t distribution."""
    if degrees <= len(_FEW):
        return _FEW[degrees - 1]
    # Fisher's expansion around the normal quantile, in powers of 1 / degrees.
    z = _NORMAL
    return (
        z
        + (z**3 + z) / (4 * degrees)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * degrees**3)
    )
