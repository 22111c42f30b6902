"""Encode a trained update for the way to the server, and decode it there.

A tied tensor travels under the first of its names only, so it stays one tensor whatever a codec
does to it. Constants do not travel: the server has them.

Nothing is checked here. An update that comes from another machine goes through
`adaptcl.engines.network.gate`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor

from adaptcl.codecs.codec import Codec, Memory, Parcel, Payload
from adaptcl.training.task import Task, Update
from adaptcl.units import CutOnDemand, Kept, State, UnitMap, recut


def encode(
    update: Update, task: Task, units: UnitMap, codec: Codec, memory: Memory
) -> tuple[Payload, Memory]:
    """What the worker sends, and the codec's memory for its next round."""
    reference = _travelling(received_tensors(task, update.kept, units), units)
    state = _travelling(update.state, units)
    return codec.encode(Parcel(units, update.kept, state, reference, task.round), memory)


def payload_bytes(task: Task, units: UnitMap, codec: Codec) -> int | None:
    """Size of the update of a task without pruning, known before it is trained.

    None if the codec cannot tell.
    """
    state = task.state
    if isinstance(state, CutOnDemand):
        state = state.without_values()
    sent = _travelling(state, units)
    return codec.size(Parcel(units, task.kept, sent, sent, task.round))


def decode(payload: Payload, update: Update, task: Task, units: UnitMap, codec: Codec) -> Update:
    """The update with the tensors that the server reads from the payload."""
    reference = received_tensors(task, update.kept, units)
    state = codec.decode(payload, _travelling(reference, units))
    state |= {name: reference[name] for name in units.constants & reference.keys()}
    further_names = {name: state[first] for name, first in units.tied.items()}
    return dataclasses.replace(update, state={**state, **further_names})


def received_tensors(task: Task, kept: Kept, units: UnitMap) -> State:
    """What the worker received with the task, cut to the units it still keeps; read only."""
    if kept is task.kept or torch.equal(kept, task.kept):
        return dict(task.state)
    return recut(task.state, units, task.kept, kept)


def _travelling(state: Mapping[str, Tensor], units: UnitMap) -> State:
    """Each tensor under one name, and no constants."""
    left_out = units.tied.keys() | units.constants
    return {name: tensor for name, tensor in state.items() if name not in left_out}
