"""AdaptCL: collaborative learning among unequal machines.

- `adaptcl.run(model, train, test, strategy="adaptcl", ...)` trains your `nn.Module` with simulated
  workers. The command `adaptcl` does the same from settings files. `adaptcl.sweep` makes several
  runs in one call, and `adaptcl.forecast` says how long a run would take.
- `adaptcl.compare(results)` and `adaptcl.plot(results)` take results and run folders.
- `adaptcl.Progress` shows the progress of a run; `adaptcl.events` are the events that any function
  can listen to. A listener that raises `adaptcl.StopRun` ends the run after the round.
- `adaptcl.custom_objective(loss, metrics)` says what to learn, for settings files.
- `adaptcl.describe(model, example)` says which units of a model can be cut.
- `adaptcl.load(folder)` returns the model of a run, or the sub-model of one worker.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from adaptcl.errors import AdaptCLError, AdaptCLWarning, StopRun

if TYPE_CHECKING:
    from adaptcl import events
    from adaptcl.api.results import Result, Results, compare, plot
    from adaptcl.api.run import describe, forecast, run, sweep
    from adaptcl.report.progress import Progress
    from adaptcl.runs.delivered import Delivered
    from adaptcl.runs.result import load
    from adaptcl.training.objectives.objective import custom_objective
else:
    _MODULES = {
        "Delivered": "adaptcl.runs.delivered",
        "Progress": "adaptcl.report.progress",
        "Result": "adaptcl.api.results",
        "Results": "adaptcl.api.results",
        "compare": "adaptcl.api.results",
        "custom_objective": "adaptcl.training.objectives.objective",
        "describe": "adaptcl.api.run",
        "forecast": "adaptcl.api.run",
        "load": "adaptcl.runs.result",
        "plot": "adaptcl.api.results",
        "run": "adaptcl.api.run",
        "sweep": "adaptcl.api.run",
    }

    def __getattr__(name: str) -> object:
        """Import a name when it is first used: `adaptcl --help` must not wait for PyTorch.

        Any other name may be a module of the package, as `adaptcl.events` is.
        """
        if name in _MODULES:
            globals()[name] = getattr(importlib.import_module(_MODULES[name]), name)
            return globals()[name]
        try:
            return importlib.import_module(f"adaptcl.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"adaptcl.{name}":
                raise
        raise AttributeError(f"module 'adaptcl' has no attribute {name!r}")


__version__ = "0.2.0.dev0"
__all__ = [
    "AdaptCLError",
    "AdaptCLWarning",
    "Delivered",
    "Progress",
    "Result",
    "Results",
    "StopRun",
    "__version__",
    "compare",
    "custom_objective",
    "describe",
    "events",
    "forecast",
    "load",
    "plot",
    "run",
    "sweep",
]


def __dir__() -> list[str]:
    return __all__
