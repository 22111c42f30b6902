"""Commands as processes of their own, forked from one that has imported everything.

To start Python and import PyTorch takes longer than the runs that tests want to kill.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from adaptcl.cli import main
from adaptcl.runs import training_profile
from tests import blank_pictures, fixed_profile

PATIENCE_S = 120.0

_CONTEXT = multiprocessing.get_context("forkserver")
# What a run imports by and by; the first step of an optimizer imports the last of them.
_CONTEXT.set_forkserver_preload(
    ["adaptcl.cli.resume", "adaptcl.cli.compare", "adaptcl.runs.session", "torch._dynamo"]
)


@contextmanager
def started(function: Callable[..., object], *arguments: Any) -> Iterator[ForkServerProcess]:
    """A function of a module, called in a process that does not outlive the block."""
    process = _CONTEXT.Process(target=function, args=arguments)
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join(PATIENCE_S)


def finished(
    *words: str,
    cwd: Path | None = None,
    killed_at_write: tuple[str, int] | None = None,
    largest_file: int | None = None,
) -> tuple[int, str]:
    """Exit status and standard error of `adaptcl` with these words.

    The process may kill itself just before a write of the file of a name reaches the disk, the
    first being 1, and may find no room for a file beyond a size.
    """
    with tempfile.NamedTemporaryFile() as errors:
        arguments = (words, errors.name, cwd, killed_at_write, largest_file)
        with started(command, *arguments) as process:
            process.join(PATIENCE_S)
            status = process.exitcode
        assert status is not None, "the process hangs"
        return status, Path(errors.name).read_text(encoding="utf-8")


def command(
    words: tuple[str, ...],
    errors: str,
    cwd: Path | None,
    killed_at_write: tuple[str, int] | None,
    largest_file: int | None,
) -> None:
    """What `finished` calls in the process it starts."""
    torch.set_num_threads(1)
    Figure.savefig = blank_pictures.savefig  # type: ignore[method-assign]
    training_profile.measure = fixed_profile.measure
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(errors, os.O_WRONLY), 2)
    if cwd is not None:
        os.chdir(cwd)
    if largest_file is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, resource.RLIM_INFINITY))
    if killed_at_write is not None:
        _kill_at_write(*killed_at_write)
    sys.exit(main(words))


def _kill_at_write(name: str, number: int) -> None:
    left, fsync = number, os.fsync

    def counted(fd: Any) -> None:
        nonlocal left
        left -= name in Path(os.readlink(f"/proc/self/fd/{fd}")).name
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        fsync(fd)

    os.fsync = counted
