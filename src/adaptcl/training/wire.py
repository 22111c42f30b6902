"""What travels between server and worker: a model, an update, and frozen tensors once.

A codec may round the model on its way down. The worker trains what it has read, and what counts on
the server is the change that training made: it is added to the model that the server has, which is
never rounded. Otherwise rounding would undo every change that is smaller than half a step. A tied
tensor travels under the first of its names only, so it stays one tensor whatever a codec does to
it.

Frozen tensors never change (`UnitMap.unchanging`), so they travel to a worker once, and after that
only their hash does. No codec touches them: rounding them would save little and cost every round
its precision. A worker keeps what it got, and cuts from it what a smaller sub-model needs. Each
task says the hash of the tensors that it is about. A worker that lacks them says so, and gets the
task again with the tensors in it. So the server may be wrong about what a worker has.

Nothing is checked here but names, shapes and types. An update that comes from another machine goes
through `adaptcl.engines.network.gate`.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from adaptcl.codecs.codec import Codec, Memory, Parcel, Payload
from adaptcl.errors import UpdateError
from adaptcl.storage import Tree
from adaptcl.training.task import Task, Update
from adaptcl.units import Kept, State, UnitMap, kept_key, recut
from adaptcl.units.cut import blank
from adaptcl.units.unit_map import ResultCache

_NO_VALUES = torch.device("meta")


@dataclass(frozen=True)
class SentTask:
    """A task as the server has given it out, and as its worker reads it."""

    given: Task
    read: Task  # its tensors have been through the codec
    size: int  # bytes of the encoded model, without frozen tensors

    def before_rounding(self) -> State:
        """The tensors that the codec has changed, as the server has them."""
        read = self.read.state  # what the codec leaves as it is, is the same object here
        return {name: t for name, t in self.given.state.items() if t is not read[name]}


def sent_task(task: Task, units: UnitMap, codec: Codec) -> SentTask:
    """A task as the server gives it out and as its worker will read it."""
    given = dataclasses.replace(task, state=dict(task.state))
    payload = encode_model(given, units, codec)
    frozen = frozen_tensors(given.state, units)
    read = decode_model(payload, frozen, task.kept, units, codec)
    return SentTask(given, dataclasses.replace(given, state=read), payload.nbytes)


def encode_model(task: Task, units: UnitMap, codec: Codec) -> Payload:
    """What the server sends of a task's model, beside frozen tensors."""
    state = _travelling(task.state, units)
    zeros = _travelling(blank(units, task.kept, _device(state)), units)
    return codec.encode(Parcel(units, task.kept, state, zeros, task.round), Memory())[0]


def decode_model(
    payload: Payload, frozen: State, kept: Kept, units: UnitMap, codec: Codec
) -> State:
    """The model that the worker reads from the payload and from the frozen tensors it has."""
    zeros = blank(units, kept, _device(payload.tensors))
    state = {**codec.decode(payload, _travelling(zeros, units)), **frozen}
    return {name: state[units.tied.get(name, name)] for name in zeros}


def encode_update(
    update: Update, task: Task, units: UnitMap, codec: Codec, memory: Memory
) -> tuple[Payload, Memory]:
    """What the worker sends for a task that it has read, and the codec's memory for its next."""
    reference = _travelling(received_tensors(task, update.kept, units), units)
    state = _travelling(update.state, units)
    return codec.encode(Parcel(units, update.kept, state, reference, task.round), memory)


def decode_update(
    payload: Payload, update: Update, sent: SentTask, units: UnitMap, codec: Codec
) -> Update:
    """The update with the tensors that the server reads from the payload."""
    reference = received_tensors(sent.read, update.kept, units)
    state = codec.decode(payload, _travelling(reference, units))
    before = dataclasses.replace(sent.given, state=_travelling(sent.before_rounding(), units))
    for name, tensor in received_tensors(before, update.kept, units).items():
        # Only the worker's change counts, on the model as it was before the codec rounded it.
        state[name] = tensor + (state[name] - reference[name])
    state |= frozen_tensors(reference, units)
    further_names = {name: state[first] for name, first in units.tied.items()}
    return dataclasses.replace(update, state={**state, **further_names})


def encoded_size(task: Task, kept: Kept, units: UnitMap, codec: Codec) -> int | None:
    """Bytes of a task's model, or of the update that leaves it the units `kept`.

    None if the codec cannot tell without the values.
    """
    state = _travelling(blank(units, kept, _NO_VALUES), units)
    return codec.size(Parcel(units, kept, state, state, task.round))


def received_tensors(task: Task, kept: Kept, units: UnitMap) -> State:
    """What the worker received with the task, cut to the units it still keeps; read only."""
    if kept is task.kept or torch.equal(kept, task.kept):
        return dict(task.state)
    return recut(task.state, units, task.kept, kept)


def _device(state: State) -> torch.device:
    return next((tensor.device for tensor in state.values()), torch.device("cpu"))


def _travelling(state: Mapping[str, Tensor], units: UnitMap) -> State:
    """What travels in every round: each tensor that can change, under one name."""
    left_out = units.tied.keys() | units.unchanging
    return {name: state[name] for name in state if name not in left_out}


# Frozen tensors ---------------------------------------------------------------------------------


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
    state = blank(units, task.kept, _NO_VALUES)
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
