"""Encode a model for the way to its worker and the update for the way back, and decode both.

A codec may round the model on its way down. The worker trains what it has read, and what counts on
the server is the change that training made: it is added to the model that the server has, which is
never rounded. Otherwise rounding would undo every change that is smaller than half a step.

A tied tensor travels under the first of its names only, so it stays one tensor whatever a codec
does to it. No codec touches frozen tensors (`frozen.py`).

Nothing is checked here but names, shapes and types. An update that comes from another machine goes
through `adaptcl.engines.network.gate`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from adaptcl.codecs.codec import Codec, Memory, Parcel, Payload
from adaptcl.training.task import Task, Update
from adaptcl.training.wire.frozen import frozen_tensors
from adaptcl.units import Kept, State, UnitMap, recut
from adaptcl.units.cut import blank

_NO_VALUES = torch.device("meta")


@dataclass(frozen=True)
class SentTask:
    """A task as the server has given it out, and as its worker reads it."""

    given: Task
    read: Task  # its tensors have been through the codec
    size: int  # bytes of the encoded model, without frozen tensors

    def rounded(self) -> State:
        """Tensors as they were before the codec changed them. The others are the same objects."""
        read = self.read.state
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


def model_size(task: Task, units: UnitMap, codec: Codec) -> int | None:
    """Bytes of a task's encoded model; None if the codec cannot tell without its values."""
    return update_size(task, task.kept, units, codec)


def encode_update(
    update: Update, task: Task, units: UnitMap, codec: Codec, memory: Memory
) -> tuple[Payload, Memory]:
    """What the worker sends for a task that it has read, and the codec's memory for its next."""
    reference = _travelling(received_tensors(task, update.kept, units), units)
    state = _travelling(update.state, units)
    return codec.encode(Parcel(units, update.kept, state, reference, task.round), memory)


def update_size(task: Task, kept: Kept, units: UnitMap, codec: Codec) -> int | None:
    """Bytes of the update of a task that leaves the units `kept`, before it is trained.

    None if the codec cannot tell.
    """
    state = _travelling(blank(units, kept, _NO_VALUES), units)
    return codec.size(Parcel(units, kept, state, state, task.round))


def decode_update(
    payload: Payload, update: Update, sent: SentTask, units: UnitMap, codec: Codec
) -> Update:
    """The update with the tensors that the server reads from the payload."""
    reference = received_tensors(sent.read, update.kept, units)
    state = codec.decode(payload, _travelling(reference, units))
    before = dataclasses.replace(sent.given, state=_travelling(sent.rounded(), units))
    for name, tensor in received_tensors(before, update.kept, units).items():
        state[name] = tensor + (state[name] - reference[name])
    state |= frozen_tensors(reference, units)
    further_names = {name: state[first] for name, first in units.tied.items()}
    return dataclasses.replace(update, state={**state, **further_names})


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
