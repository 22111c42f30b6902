"""How each worker has behaved so far: what the server holds against it, and to what it holds it.

An answer that cannot be used costs a round little, but a worker that gives nothing else must not
be asked for ever. And a worker names its own weight in the global model, the number of its
samples. No server can check that number, but it can see to it that it stays the same.
"""

from __future__ import annotations

from adaptcl.errors import AdaptCLError, UpdateError
from adaptcl.storage import Tree
from adaptcl.training import Update

STRIKES = 3
"""How many useless answers in a row a worker may give before the run goes on without it."""

_PAUSE_S, _LONGEST_PAUSE_S = 5.0, 60.0
_GROWTH = 4.0


class OtherDataError(UpdateError):
    """An update of a worker that has not the data with which it began."""


class Conduct:
    """Of all workers of one run."""

    def __init__(self, workers: int) -> None:
        self._strikes = [0] * workers
        self._refusals = [""] * workers
        """Why the last answer of each that could not be used was refused."""
        self._samples: list[int | None] = [None] * workers
        """How many each had in its first answer that was used."""
        self._last = ""

    def check(self, update: Update) -> None:
        """Refuse an update with another number of samples than the worker's first."""
        before = self._samples[update.worker]
        if before is not None and update.samples != before:
            raise OtherDataError(
                f"worker {update.worker} has {update.samples} samples, but it had {before} when it "
                "began; it has to keep its data until the run is over: start it with those again."
            )

    def approve(self, update: Update) -> None:
        """An update was used."""
        self._strikes[update.worker] = 0
        self._samples[update.worker] = update.samples

    def blame(self, worker: int, refusal: str) -> None:
        """An answer was not used, and why."""
        self._strikes[worker] += 1
        self._refusals[worker] = self._last = refusal

    def forgive(self, worker: int) -> None:
        """A worker was started anew, perhaps because its owner has mended it."""
        self._strikes[worker] = 0

    def pause(self, worker: int) -> float:
        """How many seconds to wait before a worker is asked again: what made it fail, such as a
        disk that is full for a moment, may need some to pass."""
        return min(_LONGEST_PAUSE_S, _PAUSE_S * _GROWTH ** (self._strikes[worker] - 1))

    def is_out(self, worker: int) -> bool:
        """Whether a worker is asked no more."""
        return self._strikes[worker] >= STRIKES

    def farewell(self, worker: int) -> str:
        """What a worker is told that is asked no more, or not with the data it has."""
        if not self.is_out(worker):
            return self._refusals[worker]
        return (
            f"{self._refusals[worker]} It gets no more tasks after {STRIKES} such answers in a "
            "row; start it again when that is mended."
        )

    def refuse_to_wait_in_vain(self) -> None:
        """An error where no worker is left that could ever be asked again."""
        if all(map(self.is_out, range(len(self._strikes)))):
            raise AdaptCLError(
                f"No worker is left: each has given {STRIKES} answers in a row that could not be "
                f"used. The last was refused because of this: {self._last}"
            )

    def snapshot(self) -> dict[str, Tree]:
        """What a checkpoint has to hold of it."""
        return {"samples": list(self._samples)}

    def restore(self, tree: Tree) -> None:
        """Go on from a checkpoint. Whoever resumes a run may have mended what made workers fail,
        so none of that is held against them."""
        self._samples = tree["samples"]
