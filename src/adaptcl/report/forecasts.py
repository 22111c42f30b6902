"""Forecasts side by side, in the columns in which runs are compared."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from adaptcl.forecast import Forecast
from adaptcl.records import first_and_last_heterogeneity
from adaptcl.report.rows import BASELINE_STRATEGY
from adaptcl.report.table import Comparison
from adaptcl.report.wording import FACTOR, HETEROGENEITY, PERCENT, duration_measure

_HEADINGS = (
    "strategy",
    "virtual time",
    "speed-up",
    "parameters saved",
    "FLOPs saved",
    "smallest sub-model",
    "H before → after",
)


def forecast_table(forecasts: Sequence[Forecast]) -> Comparison:
    """One row a strategy, held against that of `fedavg-s`, as runs are, or else against the first.
    Warnings come below."""
    longest = max(each.virtual_time_s for each in forecasts)
    usual = [each for each in forecasts if each.strategy == BASELINE_STRATEGY]
    reference = [*usual, *forecasts][0].virtual_time_s
    rows = [
        (
            each.strategy,
            duration_measure(longest).write(each.virtual_time_s),
            FACTOR.write(reference / each.virtual_time_s),
            PERCENT.write(1 - fmean(each.retention)),
            PERCENT.write(each.flops_saved),
            PERCENT.write(min(each.retention)),
            " → ".join(
                HETEROGENEITY.write(h) for h in first_and_last_heterogeneity(each.heterogeneity)
            ),
        )
        for each in forecasts
    ]
    warnings = [f"{each.strategy}: {told}" for each in forecasts for told in each.warnings]
    return Comparison(_HEADINGS, rows, warnings)
