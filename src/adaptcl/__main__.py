"""`python -m adaptcl`, for where the command `adaptcl` is not installed."""

import sys

from adaptcl.cli import main

# A process of its own for a run imports this module again, and must not run the command again.
if __name__ == "__main__":
    sys.exit(main())
