"""`adaptcl.forecast`: how long a run would take, from Python, without training anything."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from torch import nn

from adaptcl.api.run import prepare
from adaptcl.report.table import forecast_table
from adaptcl.runs.forecast import Forecast, forecast_workload


class Forecasts(tuple[Forecast, ...]):
    """A forecast for each strategy. `print` writes them as a table, a notebook too."""

    def __repr__(self) -> str:
        console = Console(width=100, force_terminal=False, color_system=None)
        with console.capture() as captured:
            console.print(forecast_table(self))
        return captured.get().rstrip()

    def _repr_html_(self) -> str:
        return forecast_table(self).html()


def forecast(
    model: nn.Module,
    train: Any,
    test: Any,
    *,
    preset: str | None = None,
    **settings: Any,
) -> Forecasts:
    """Compute how long a run would take on its clock, without training anything.

    The arguments are those of `adaptcl.run`. `strategy` may be a list, with a forecast for each.
    """
    named = settings.get("strategy")
    strategies = named if isinstance(named, list | tuple) else [named]
    found = []
    for strategy in strategies:
        chosen = {**settings, "strategy": strategy} if strategy is not None else settings
        config, workload = prepare(model, train, test, preset, chosen)
        found.append(forecast_workload(config, workload))
    return Forecasts(found)
