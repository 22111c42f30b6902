"""`python -m adaptcl`, for where the command `adaptcl` is not installed."""

from __future__ import annotations

import sys

from adaptcl.cli.main import main

# A process of its own for a run imports this module again, and must not run the command again.
if __name__ == "__main__":
    sys.exit(main())
