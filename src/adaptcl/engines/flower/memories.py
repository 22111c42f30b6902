"""What a worker remembers between tasks, kept on its own disk.

A worker that is killed and comes back must go on as if nothing had happened, and a server that
goes on from a checkpoint may ask again for a round that was already done. So the memory from
before each of the last rounds is kept, in one file for each run.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from adaptcl import snapshot
from adaptcl.codecs.codec import Memory
from adaptcl.errors import RunFolderError
from adaptcl.training.worker import WorkerMemory

_ROUNDS = 3
"""How many rounds back a server may go: it writes a checkpoint after every round by default."""


class Memories:
    """The memory of one worker in one run."""

    def __init__(self, folder: Path, run: str, worker: int) -> None:
        name = hashlib.sha256(f"{run}/{worker}".encode()).hexdigest()[:16]
        self._path = folder / f"memory-{name}.safetensors"
        self._before: dict[int, WorkerMemory] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise RunFolderError(f"{folder} cannot be made: {error.strerror}.") from None
        if self._path.exists():
            for number, lasso, codec in snapshot.load(self._path):
                self._before[number] = WorkerMemory(lasso, Memory(codec))

    def before(self, round_: int) -> WorkerMemory:
        """What the worker knew when it began a round, or the latest it knew before that."""
        earlier = [number for number in self._before if number <= round_]
        return self._before[max(earlier)] if earlier else WorkerMemory()

    def after(self, round_: int, memory: WorkerMemory) -> None:
        """Remember what a round has left; what came of later rounds no longer holds."""
        kept = {n: m for n, m in self._before.items() if round_ - _ROUNDS < n <= round_}
        self._before = {**kept, round_ + 1: memory}
        tree = [[n, m.lasso, dict(m.codec.tensors)] for n, m in self._before.items()]
        snapshot.save(self._path, tree)

    def forget(self) -> None:
        """The run is over."""
        self._path.unlink(missing_ok=True)
