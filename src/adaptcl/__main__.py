"""The command `adaptcl`, also as `python -m adaptcl`: little is imported before Ctrl-C is clean."""

from __future__ import annotations

import sys

from adaptcl.interrupts import leaving_at_once


def main() -> int:
    """Run the command line and return the exit status."""
    with leaving_at_once():
        from adaptcl.cli import main as run_command
    return run_command()


# A child process imports this module again and must not run the command again.
if __name__ == "__main__":
    sys.exit(main())
