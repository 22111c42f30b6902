"""AdaptCL: collaborative learning among unequal machines.

- `adaptcl.run(model, train, test, strategy="adaptcl", ...)` trains your `nn.Module` with simulated
  workers. The command `adaptcl` does the same from settings files.
- `adaptcl.Progress` shows the progress of a run; `adaptcl.events` are the events that any function
  can listen to. A listener that raises `adaptcl.StopRun` ends the run after the round.
- `adaptcl.describe(model, example)` says which units of a model can be cut.
- `adaptcl.load(folder)` returns the model of a finished run, or the sub-model of one worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from adaptcl.errors import AdaptCLError, AdaptCLWarning, StopRun
from adaptcl.lazy import lazy_names

if TYPE_CHECKING:
    from adaptcl import events
    from adaptcl.report.progress import Progress
    from adaptcl.runs.result import Delivered, Result, load
    from adaptcl.runs.run import run
    from adaptcl.units import describe
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "Delivered": "adaptcl.runs.result",
            "Progress": "adaptcl.report.progress",
            "Result": "adaptcl.runs.result",
            "describe": "adaptcl.units",
            "load": "adaptcl.runs.result",
            "run": "adaptcl.runs.run",
        },
    )

__version__ = "0.1.0"
__all__ = [
    "AdaptCLError",
    "AdaptCLWarning",
    "Delivered",
    "Progress",
    "Result",
    "StopRun",
    "__version__",
    "describe",
    "events",
    "load",
    "run",
]


def __dir__() -> list[str]:
    return __all__
