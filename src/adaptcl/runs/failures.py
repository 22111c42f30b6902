"""Runs that fail while others of the same command go on."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from adaptcl.errors import AdaptCLError
from adaptcl.events import Event, Listener, RoundFinished, RunStarted


@dataclass(frozen=True)
class FailedRun:
    """One run of several that failed."""

    strategy: str
    seed: int
    round: int
    """The round in which it failed; 0 if it did not begin."""
    folder: Path | None
    error: Exception

    def __str__(self) -> str:
        """A sentence with all that a user needs to find and repeat it."""
        when = f"in round {self.round}" if self.round else "before its first round"
        where = f" ({self.folder})" if self.folder is not None else ""
        return f"{self.strategy} with seed {self.seed} failed {when}{where}: {self.reason}"

    @property
    def reason(self) -> str:
        if isinstance(self.error, AdaptCLError):
            return str(self.error)
        return f"{type(self.error).__name__}: {self.error}"


@contextmanager
def noting_failure(
    strategy: str, seed: int, folder: Path | None, failed: list[FailedRun], *, alone: bool = False
) -> Iterator[Listener]:
    """Note the failure of a run that listens with what this yields, and go on with the others.

    An error that is not ours, most likely in a custom model or data set, is shown in full. The
    error of a run that is alone is just raised.
    """
    reached, last = 0, 0

    def count(event: Event) -> None:
        nonlocal reached, last
        if isinstance(event, RunStarted):
            reached, last = event.rounds_done + 1, event.rounds
        elif isinstance(event, RoundFinished):
            reached = min(event.record.round + 1, last)

    try:
        yield count
    except Exception as error:
        # Nobody reads the output any more, or the user wants warnings to be errors.
        if alone or isinstance(error, BrokenPipeError | Warning):
            raise
        if not isinstance(error, AdaptCLError):
            traceback.print_exc()
        failed.append(FailedRun(strategy, seed, reached, folder, error))
