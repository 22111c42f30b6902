"""`python -m adaptcl`, for where the command `adaptcl` is not installed."""

from __future__ import annotations

import sys

from adaptcl.cli.main import main

# A child process imports this module again and must not run the command again.
if __name__ == "__main__":
    sys.exit(main())
