"""The command line.

A setting's flag comes from its `setting(...)` declaration (`setting_flags.py`). All other flags are
in `parser.py`. Both do without PyTorch: the module of a command is imported when the command runs.

An error that the user can fix is one sentence on standard error and exit status 2. Ctrl-C says how
to resume.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stderr, redirect_stdout
from datetime import datetime
from typing import TextIO

from adaptcl.errors import AdaptCLError
from adaptcl.interrupts import catch_signals, leaving_at_once


def main(arguments: Sequence[str] | None = None) -> int:
    with leaving_at_once():
        from adaptcl.cli.parser import command_line  # which imports this module
    return answer(command_line, arguments)


def answer(parser: Callable[[], argparse.ArgumentParser], arguments: Sequence[str] | None) -> int:
    """Run the command of any command line and return the exit status."""
    catch_signals()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot write σ shows ?
    # package.module:build may be in the folder in which the command is given.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    options = argparse.Namespace()
    try:
        words = sys.argv[1:] if arguments is None else [*arguments]
        options = parser().parse_args(words)
        options.words = words
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


def say(line: str) -> None:
    """Print a message of the program itself, beside its output."""
    print(f"adaptcl: {line}", file=sys.stderr, flush=True)


class _WithTimes(io.TextIOBase):
    """Writes the time of day before each line."""

    def __init__(self, to: TextIO) -> None:
        self._to = to
        self._in_line = False

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._to.encoding

    def fileno(self) -> int:
        return self._to.fileno()

    def flush(self) -> None:
        self._to.flush()

    def write(self, text: str) -> int:
        for line in text.splitlines(keepends=True):
            if not self._in_line:
                self._to.write(datetime.now().astimezone().isoformat(" ", "seconds") + " ")
            self._to.write(line)
            self._in_line = not line.endswith("\n")
        return len(text)


@contextmanager
def with_times() -> Iterator[None]:
    """The time of day, local, before each line that goes to no terminal.

    Servers and workers run for days, and what they say ends in a file. On a terminal somebody looks
    on, and the display of a run has clocks of its own.
    """
    with ExitStack() as stack:
        if not sys.stdout.isatty():
            stack.enter_context(redirect_stdout(_WithTimes(sys.stdout)))
        if not sys.stderr.isatty():
            stack.enter_context(redirect_stderr(_WithTimes(sys.stderr)))
        yield


@contextmanager
def doing(what: str) -> Iterator[None]:
    """Show on a terminal what takes a moment. It disappears when it is done."""
    is_shown = sys.stderr.isatty()
    if is_shown:
        print(f"{what} …", end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if is_shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
