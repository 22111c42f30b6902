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
    strategy: object, seed: int, folder: Path | None, failed: list[FailedRun]
) -> Iterator[Listener]:
    """Note the failure of a run that listens with what this yields, and go on.

    An error that is not ours, most likely in a custom model or data set, is shown in full.
    """
    reached = 0

    def count(event: Event) -> None:
        nonlocal reached
        if isinstance(event, RunStarted):
            reached = event.rounds_done + 1
        elif isinstance(event, RoundFinished):
            reached = event.record.round + 1

    try:
        yield count
    except Warning:
        raise  # the user wants warnings to be errors
    except Exception as error:
        if not isinstance(error, AdaptCLError):
            traceback.print_exc()
        name = strategy.__name__ if isinstance(strategy, type) else str(strategy)
        failed.append(FailedRun(name, seed, reached, folder, error))
