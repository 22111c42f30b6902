"""What a worker remembers between tasks, kept on its disk.

A worker that is killed and comes back must go on as if nothing had happened, and a resumed server
may ask again for rounds that were already done. So the worker keeps what it knew before each of its
latest tasks, one file for each, until the run is over.

For a server that goes back by any number of rounds:

- The group lasso's λ stays what it was in the worker's first task.
- What the codec left unsent is exactly what it was after the latest update that the server used. An
  update that the server could not use, or gave up on, counts as never sent.
- That also holds for repeated tasks, as long as they are among the last four, or among the latest
  whose memories are at most 512 MiB together. (With DGC these are the last 8 for a model of 60 MiB,
  and 500 for one of 1 MiB.)
- If the server goes back further, the codec starts again from nothing, and a warning says so.

Tasks count, not rounds: a worker that is asked once in many rounds remembers no less. A codec that
leaves nothing unsent costs one small file, however long the run is.
"""

from __future__ import annotations

import hashlib
import warnings
from pathlib import Path

from adaptcl import storage
from adaptcl.codecs.codec import Memory
from adaptcl.errors import AdaptCLWarning
from adaptcl.training.worker import WorkerMemory

_TASKS = 4  # how many memories to keep, whatever their size

_BYTES = 2**29  # how large all memories together may be if there are more


class Memories:
    """The memory of one worker in one run."""

    def __init__(self, folder: Path, run: str, worker: int) -> None:
        name = hashlib.sha256(f"{run}/{worker}".encode()).hexdigest()[:16]
        self._stem = f"memory-{name}-"
        self._folder = folder
        self._first: int | None = None  # the round before which the first memory was kept
        self._lasso: float | None = None
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if kept := self._kept():
            newest = storage.load(self._path(kept[-1]))
            self._first, self._lasso = newest["first"], newest["lasso"]

    def before(self, round_: int, used: int) -> WorkerMemory:
        """What to begin a round with, if the update of round `used` was the latest that counted."""
        if self._first is None or round_ < self._first:
            return WorkerMemory()
        if used + 1 < self._first:
            return WorkerMemory(self._lasso)
        known = self._latest(used + 1)
        if known is None:
            warnings.warn(
                f"The server has gone back to round {round_}, further than this worker remembers "
                "what its codec had left unsent; a smaller checkpoint_every would avoid that.",
                AdaptCLWarning,
                stacklevel=2,
            )
        return known or WorkerMemory(self._lasso)

    def after(self, round_: int, memory: WorkerMemory, used: int) -> None:
        """Remember what a round has left. Memories of later rounds, and of updates that did not
        count, are no longer true."""
        for number in self._kept():
            if number > used + 1:
                self._path(number).unlink(missing_ok=True)
        if self._first is None or round_ < self._first:
            self._first = round_ + 1
        elif not memory.codec.tensors and memory == self._latest(round_):
            return  # nothing new, and the memory from before is still here
        self._lasso = memory.lasso_lambda
        tree = {"first": self._first, "lasso": self._lasso, "codec": dict(memory.codec.tensors)}
        storage.save(self._path(round_ + 1), tree)
        self._drop_the_oldest()

    def forget(self) -> None:
        for path in self._folder.glob(f"{self._stem}*"):
            path.unlink(missing_ok=True)

    def _latest(self, round_: int) -> WorkerMemory | None:
        earlier = [number for number in self._kept() if number <= round_]
        if not earlier:
            return None
        tree = storage.load(self._path(earlier[-1]))
        return WorkerMemory(tree["lasso"], Memory(tree["codec"]))

    def _drop_the_oldest(self) -> None:
        total = 0
        for count, number in enumerate(reversed(self._kept()), start=1):
            total += self._path(number).stat().st_size
            if count > _TASKS and total > _BYTES:
                self._path(number).unlink(missing_ok=True)

    def _kept(self) -> list[int]:
        """The rounds before which memories were kept, in rising order."""
        found = self._folder.glob(f"{self._stem}*.safetensors")
        return sorted(int(path.stem.removeprefix(self._stem)) for path in found)

    def _path(self, number: int) -> Path:
        return self._folder / f"{self._stem}{number}.safetensors"
