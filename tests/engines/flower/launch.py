"""The commands of the network as a process of their own, whatever else the command line has."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from adaptcl import flags
from adaptcl.engines.flower.commands import add_commands, resume
from adaptcl.errors import AdaptCLError


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    parser = flags.Parser()
    commands = parser.add_subparsers(required=True)
    add_commands(commands, lambda folders, figures: None)
    again = commands.add_parser("resume")
    again.add_argument("run")
    again.set_defaults(command=lambda options: resume(Path(options.run)))
    try:
        options = parser.read(None)
        options.command(options)
    except AdaptCLError as error:
        print(f"adaptcl: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
