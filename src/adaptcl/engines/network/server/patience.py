"""How long the server bears with its workers: with those that do not come, and those that fail.

An answer that cannot be used costs a round little, but a worker that gives nothing else must not
be asked for ever. A worker also names the number of its samples, which is its weight in the global
model. The server cannot check that number, but it can refuse to let it change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from adaptcl.errors import AdaptCLError, UpdateError, name_workers
from adaptcl.storage import Tree
from adaptcl.training import Update

_FIRST_S, _RAREST_S = 30.0, 3600.0  # how often waited-for workers are named, at first and at last

_LEAST_WAIT_S = 30.0  # as long as a worker may be silent, unless its owner says otherwise

STRIKES = 3  # useless answers in a row after which a worker gets no more tasks

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 5.0, 60.0
_GROWTH = 4.0


# Waiting ----------------------------------------------------------------------------------------


class Reminder:
    """When to name the workers that are waited for: often at first, then more and more rarely."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pause = _FIRST_S
        self._due: float | None = None

    def is_due(self, workers: Collection[int]) -> bool:
        """Whether it is time to name the workers that are waited for."""
        if not workers:
            self._pause, self._due = _FIRST_S, None
        elif self._due is None:
            self._due = self._clock() + self._pause
        elif self._clock() >= self._due:
            self._pause = min(_RAREST_S, 2 * self._pause)
            self._due = self._clock() + self._pause
            return True
        return False

    def due_in(self) -> float:
        """Seconds until there is something to say; at most a minute."""
        return 60.0 if self._due is None else max(0.0, min(60.0, self._due - self._clock()))


def longest_wait(
    missing: Collection[int],
    connected: Collection[int],
    patience: float,
    update_times: Sequence[float],
    *,
    had_time: bool = False,
) -> float:
    """Seconds to wait for workers that took part before, when a run is resumed or a job's next run
    begins. One that never comes must not hold up the rest.

    A connected worker gets the `patience` for a task. Another may still be training for a server
    that was killed, and finds out only when it is done. If it `had_time` before, it gets no more.
    """
    return_s = 0.0 if had_time else min(patience, max(_LEAST_WAIT_S, 2 * max(update_times)))
    return max(patience if worker in connected else return_s for worker in missing)


def going_on_without(missing: Collection[int]) -> str:
    verb, them = ("has", "it is") if len(missing) == 1 else ("have", "they are")
    return (
        f"The run goes on without {name_workers(missing)}, which {verb} not come; {them} taken "
        "back at any time."
    )


def departure(*, said_goodbye: bool) -> str:
    """Why a worker is gone."""
    return "it has left" if said_goodbye else "it is not heard of any more"


# Failures ---------------------------------------------------------------------------------------


class OtherDataError(UpdateError):
    """An update from a worker whose number of samples has changed."""


class Reliability:
    """How reliable each worker of a run has been so far."""

    def __init__(self, workers: int) -> None:
        self._strikes = [0] * workers
        self._reasons = [""] * workers
        """Why the server refused the last useless answer of each worker."""
        self._samples: list[int | None] = [None] * workers
        """Samples that each worker had in its first answer that was used."""
        self._last_reason = ""

    def check_samples(self, update: Update) -> None:
        """Refuse an update with another number of samples than the worker's first."""
        before = self._samples[update.worker]
        if before is not None and update.samples != before:
            raise OtherDataError(
                f"worker {update.worker} has {update.samples} samples, but it had {before} when it "
                "began; a worker must keep its data until the run is over, so start it with the "
                "same data again."
            )

    def succeeded(self, update: Update) -> None:
        self._strikes[update.worker] = 0
        self._samples[update.worker] = update.samples

    def failed(self, worker: int, reason: str) -> None:
        self._strikes[worker] += 1
        self._reasons[worker] = self._last_reason = reason

    def restarted(self, worker: int) -> None:
        """Forgive a worker that was started again: its owner may have fixed it."""
        self._strikes[worker] = 0

    def pause(self, worker: int) -> float:
        """Seconds to wait before asking a worker again after a failure. Its cause may need time to
        pass, such as a disk that is full for a moment."""
        return min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * _GROWTH ** (self._strikes[worker] - 1))

    def is_excluded(self, worker: int) -> bool:
        """Whether a worker gets no more tasks."""
        return self._strikes[worker] >= STRIKES

    def dismissal(self, worker: int) -> str:
        """Why the server dismisses a worker, for the worker's owner."""
        if not self.is_excluded(worker):
            return self._reasons[worker]
        return (
            f"{self._reasons[worker]} It gets no more tasks after {STRIKES} such answers in a "
            "row; start it again when that is fixed."
        )

    def refuse_if_all_are_excluded(self) -> None:
        if all(map(self.is_excluded, range(len(self._strikes)))):
            raise AdaptCLError(
                f"No worker is left: each has given {STRIKES} answers in a row that could not be "
                f"used. The last was refused because of this: {self._last_reason}"
            )

    def snapshot(self) -> dict[str, Tree]:
        return {"samples": list(self._samples)}

    def restore(self, tree: Tree) -> None:
        """Failures are forgiven: whoever resumes a run may have fixed their cause."""
        self._samples = tree["samples"]
