"""Frozen tensors, which never change (`UnitMap.unchanging`) and travel to a worker once.

After that only their hash does. No codec touches them: rounding them would save little and cost
every round its precision. A worker keeps what it got, and cuts from it what a smaller sub-model
needs. Each task says the hash of the tensors that it is about. A worker that lacks them says so,
and gets the task again with the tensors in it. So the server may be wrong about what a worker has.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from adaptcl.errors import UpdateError
from adaptcl.storage import Tree
from adaptcl.training.task import Task
from adaptcl.units import Kept, State, UnitMap, kept_key, recut
from adaptcl.units.cut import blank
from adaptcl.units.unit_map import ResultCache


class LackingError(UpdateError):
    """A worker does not have the frozen tensors of its task."""


def frozen_tensors(state: Mapping[str, Tensor], units: UnitMap) -> State:
    """The tensors of a state that never change, a tied one under its first name only."""
    names = units.unchanging - units.tied.keys()
    return {name: state[name] for name in state if name in names}


def digest(tensors: Mapping[str, Tensor]) -> str:
    """A hash of names, types, shapes and values."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        found.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def frozen_size(task: Task, units: UnitMap) -> int:
    state = blank(units, task.kept, torch.device("meta"))
    return sum(tensor.nbytes for tensor in frozen_tensors(state, units).values())


@dataclass(frozen=True)
class SentFrozenTensors:
    """What travels with a task about its frozen tensors."""

    digest: str
    tensors: State  # empty if the worker has them


class FrozenTensorHolders:
    """The units whose frozen tensors each worker has, as far as the server knows."""

    def __init__(self, units: UnitMap) -> None:
        self._units = units
        self._held: dict[int, Kept] = {}
        self._digests = ResultCache(256)

    def lacks(self, task: Task) -> bool:
        """Whether a task has to bring the frozen tensors to its worker."""
        if not self._units.unchanging:
            return False
        held = self._held.get(task.worker)
        return held is None or bool((task.kept & ~held).any())

    def answered(self, task: Task) -> None:
        """Note that a worker has what came with a task: it has answered it."""
        if self.lacks(task):
            self._held[task.worker] = task.kept

    def claim(self, worker: int, kept: Kept | None) -> None:
        """Note the units whose tensors a worker says it has when it joins; None if it has none."""
        self.forget(worker)
        if kept is not None:
            self._held[worker] = kept

    def forget(self, worker: int) -> None:
        self._held.pop(worker, None)

    def tensors_for(self, task: Task) -> SentFrozenTensors | None:
        """What to send with a task; None if the model has no frozen tensors."""
        if not self._units.unchanging:
            return None
        found = self._digests.get(
            kept_key(task.kept), lambda: digest(frozen_tensors(task.state, self._units))
        )
        return SentFrozenTensors(
            found, frozen_tensors(task.state, self._units) if self.lacks(task) else {}
        )

    def snapshot(self) -> Tree:
        return [[worker, kept] for worker, kept in self._held.items()]

    def restore(self, tree: Tree) -> None:
        self._held = dict(tree)


class HeldFrozenTensors:
    """The frozen tensors that a worker has, and of which units."""

    def __init__(self, kept: Kept, tensors: State, units: UnitMap) -> None:
        self.kept = kept
        self._tensors = tensors
        self._units = units
        self._latest: tuple[Kept, State, str] | None = None

    def part(self, kept: Kept, expected: str) -> State:
        """The tensors of the sub-model with these units; an error if their hash is another."""
        if self._latest is None or not torch.equal(self._latest[0], kept):
            if bool((kept & ~self.kept).any()):
                raise LackingError("This worker lacks frozen tensors of its task.")
            is_whole = torch.equal(kept, self.kept)
            tensors = (
                self._tensors if is_whole else recut(self._tensors, self._units, self.kept, kept)
            )
            self._latest = kept, tensors, digest(tensors)
        _, tensors, found = self._latest
        if found != expected:
            raise LackingError("This worker has other frozen tensors than those of its task.")
        return tensors
