"""Which workers fail, when to ask them again, and when to stop asking.

An answer that cannot be used costs a round little, but a worker that gives nothing else must not
be asked for ever. A worker also names the number of its samples, which is its weight in the global
model. The server cannot check that number, but it can refuse to let it change.
"""

from __future__ import annotations

from adaptcl.errors import AdaptCLError, UpdateError
from adaptcl.storage import Tree
from adaptcl.training import Update

STRIKES = 3  # useless answers in a row after which a worker gets no more tasks

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 5.0, 60.0
_GROWTH = 4.0


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
