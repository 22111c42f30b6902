"""AdaptCL: collaborative learning among unequal machines.

`adaptcl.run(model, train, test, strategy="adaptcl", ...)` trains your own `nn.Module` with
simulated workers; the command `adaptcl` does the same from settings files. `adaptcl.Progress` shows
how a run gets on, `adaptcl.events` are what any function may listen to, and
`adaptcl.describe(model, example)` says what of a model can be cut. `adaptcl.load(folder)` gives the
model of a finished run, or one worker's part of it.
"""

from adaptcl.errors import AdaptCLError, AdaptCLWarning
from adaptcl.report.progress import Progress
from adaptcl.runs.delivered import Delivered
from adaptcl.runs.result import Result, load
from adaptcl.runs.run import run
from adaptcl.units import describe

__version__ = "0.1.0"
__all__ = [
    "AdaptCLError",
    "AdaptCLWarning",
    "Delivered",
    "Progress",
    "Result",
    "__version__",
    "describe",
    "events",
    "load",
    "run",
]
