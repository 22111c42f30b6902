"""What a worker remembers between tasks, kept on its own disk.

A worker that is killed and comes back must go on as if nothing had happened, and a server that
goes on from a checkpoint may ask again for rounds that were already done. So what was known before
each of the last tasks is kept, one file for each, until the run is over.

What is promised, for a server that goes back by any number of rounds:

- The group lasso's λ stays what it was found, or told, to be in the worker's first task.
- What the codec left unsent is exactly what it was after the latest update that the server has
  used. An update that it could not use, or gave up waiting for, is as if the codec had not sent it.
- That holds for a task that is asked for again too, as long as it is among the last four, or among
  the latest whose memories are no more than 512 MiB together. (Of a model of 60 MiB with DGC these
  are the last 8, of one of 1 MiB 500.)
- Where the server goes back further than that, the codec begins anew, and a warning says so.

Tasks are counted, not rounds: a worker that is asked once in many rounds remembers no less. A
codec that leaves nothing unsent costs one small file, however long the run is.
"""

from __future__ import annotations

import hashlib
import warnings
from pathlib import Path

from adaptcl import storage as snapshot
from adaptcl.codecs.codec import Memory
from adaptcl.errors import AdaptCLWarning, RunFolderError
from adaptcl.training.worker import WorkerMemory

_TASKS = 4
"""How many memories are kept, whatever their size."""

_BYTES = 2**29
"""How large all memories together may be, where they are more than that."""


class Memories:
    """The memory of one worker in one run."""

    def __init__(self, folder: Path, run: str, worker: int) -> None:
        name = hashlib.sha256(f"{run}/{worker}".encode()).hexdigest()[:16]
        self._stem = f"memory-{name}-"
        self._folder = folder
        self._first: int | None = None
        """The round before which the first memory was known; before that there was none."""
        self._lasso: float | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise RunFolderError(f"{folder} cannot be made: {error.strerror}.") from None
        if kept := self._kept():
            newest = snapshot.load(self._path(kept[-1]))
            self._first, self._lasso = newest["first"], newest["lasso"]

    def before(self, round_: int, used: int | None = None) -> WorkerMemory:
        """What to begin a round with, if the update of round `used` was the latest that counted.

        Where that is not known, all that the worker did before this round counts.
        """
        if self._first is None or round_ < self._first:
            return WorkerMemory()
        if used is not None and used + 1 < self._first:
            return WorkerMemory(self._lasso)
        known = self._latest(round_ if used is None else used + 1)
        if known is None:
            warnings.warn(
                f"The server has gone back to round {round_}, further than this worker remembers "
                "what its codec had left unsent; a smaller checkpoint_every would avoid that.",
                AdaptCLWarning,
                stacklevel=2,
            )
        return known or WorkerMemory(self._lasso)

    def after(self, round_: int, memory: WorkerMemory, used: int | None = None) -> None:
        """Remember what a round has left that began with what `before` gave.

        What came of later rounds no longer holds, nor what came of updates that did not count.
        """
        for number in self._kept():
            if number > (round_ if used is None else used + 1):
                self._path(number).unlink(missing_ok=True)
        if self._first is None or round_ < self._first:
            self._first = round_ + 1
        elif not memory.codec.tensors and memory == self._latest(round_):
            return  # The round has taught nothing, and what was known before is still here.
        self._lasso = memory.lasso
        tree = {"first": self._first, "lasso": memory.lasso, "codec": dict(memory.codec.tensors)}
        snapshot.save(self._path(round_ + 1), tree)
        self._drop_the_oldest()

    def forget(self) -> None:
        """The run is over."""
        for path in self._folder.glob(f"{self._stem}*"):
            path.unlink(missing_ok=True)

    def _latest(self, round_: int) -> WorkerMemory | None:
        earlier = [number for number in self._kept() if number <= round_]
        if not earlier:
            return None
        tree = snapshot.load(self._path(earlier[-1]))
        return WorkerMemory(tree["lasso"], Memory(tree["codec"]))

    def _drop_the_oldest(self) -> None:
        total = 0
        for count, number in enumerate(reversed(self._kept()), start=1):
            total += self._path(number).stat().st_size
            if count > _TASKS and total > _BYTES:
                self._path(number).unlink(missing_ok=True)

    def _kept(self) -> list[int]:
        """The rounds before which something was known that is still here, in rising order."""
        found = self._folder.glob(f"{self._stem}*.safetensors")
        return sorted(int(path.stem.removeprefix(self._stem)) for path in found)

    def _path(self, number: int) -> Path:
        return self._folder / f"{self._stem}{number}.safetensors"
