"""The interval in which a mean over seeds lies: how far it may be luck."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

_T_QUANTILES = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622)
"""The 0.975 quantiles of Student's t distribution with 1, 2, … degrees of freedom."""
_NORMAL_QUANTILE = 1.959964
"""The 0.975 quantile of the normal distribution, the limit for many degrees."""


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % confidence interval of the mean; None for fewer than two values."""
    if len(values) < 2:
        return None
    mean = fmean(values)
    reach = t_quantile(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return mean - reach, mean + reach


def t_quantile(degrees: int) -> float:
    """The 0.975 quantile of Student's t distribution."""
    if degrees <= len(_T_QUANTILES):
        return _T_QUANTILES[degrees - 1]
    # Fisher's expansion around the normal quantile, in powers of 1 / degrees.
    z = _NORMAL_QUANTILE
    return (
        z
        + (z**3 + z) / (4 * degrees)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * degrees**3)
    )
