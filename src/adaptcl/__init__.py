"""AdaptCL: collaborative learning among unequal machines.

`adaptcl.run(model, train, test, strategy="adaptcl", ...)` trains your own `nn.Module` with
simulated workers; the command `adaptcl` does the same from settings files.
"""

from adaptcl.errors import AdaptCLError
from adaptcl.run import Result, run

__version__ = "0.1.0"
__all__ = ["AdaptCLError", "Result", "__version__", "run"]
