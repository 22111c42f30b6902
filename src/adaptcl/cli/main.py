"""The command `adaptcl`.

An error that the user can fix is one sentence on standard error and exit status 2. Ctrl-C says how
to resume.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext

from adaptcl.cli import say, with_times
from adaptcl.cli.parser import command_line
from adaptcl.errors import AdaptCLError
from adaptcl.interrupts import catch_signals


def main(arguments: Sequence[str] | None = None) -> int:
    return answer(command_line, arguments)


def answer(parser: Callable[[], argparse.ArgumentParser], arguments: Sequence[str] | None) -> int:
    """Run the command of any command line and return the exit status."""
    catch_signals()
    options = argparse.Namespace()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot write σ shows ?
    # package.module:build may be in the folder in which the command is given.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        options = parser().parse_args(arguments)
        options.command(options)
        sys.stdout.flush()
    except AdaptCLError as error:
        with with_times() if "with_times" in options else nullcontext():
            say(str(error))
        return 2
    except KeyboardInterrupt:
        with with_times() if "with_times" in options else nullcontext():
            say("interrupted.")
        # Threads that train cannot be stopped, and the interpreter would wait for them.
        os._exit(130)
    except BrokenPipeError:
        # Nobody reads the output any more. The interpreter must not write the rest as it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0
