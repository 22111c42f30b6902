"""An update's way to the server: encoded by the worker, decoded and checked by the server.

Nothing a worker sends touches the global model before it has passed here. A worker may be broken
or hostile: its units must be among those it was given, its tensors must have the shapes of its
units, and every number must be finite. Numbers are looked at once, here, in what the codec made of
the payload: that holds for any codec, and finite changes can still add up to infinity.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

import torch

from adaptcl.codecs.codec import Codec, Memory, Parcel, Payload
from adaptcl.errors import UpdateError
from adaptcl.finite import first_not_finite
from adaptcl.training.task import Task, Update
from adaptcl.units import CutOnDemand, Kept, State, UnitMap, check_kept, cut_shapes, recut


def pack(
    update: Update, task: Task, units: UnitMap, codec: Codec, memory: Memory
) -> tuple[Payload, Memory]:
    """What the worker puts on the wire, and what its codec remembers."""
    reference = _reference(task, update.kept, units)
    return codec.encode(Parcel(units, update.kept, update.state, reference, task.round), memory)


def payload_bytes(task: Task, units: UnitMap, codec: Codec) -> int:
    """How large the update of a task will be, if the task prunes nothing."""
    state = task.state
    if isinstance(state, CutOnDemand):
        state = state.without_values()
    return codec.size(Parcel(units, task.kept, dict(state), dict(state), task.round))


def unpack(payload: Payload, header: Update, task: Task, units: UnitMap, codec: Codec) -> Update:
    """The update as the server understands it, checked against the task it answers.

    `header` carries everything but the tensors.
    """
    check_header(header, task, units)
    reference = _reference(task, header.kept, units)
    update = dataclasses.replace(header, state=codec.decode(payload, reference))
    check_tensors(update, units)
    return update


def check_header(update: Update, task: Task, units: UnitMap) -> None:
    """Refuse an update that does not answer the task."""
    who = f"worker {update.worker}"
    if (update.worker, update.round) != (task.worker, task.round):
        raise UpdateError(
            f"{who} answered for round {update.round}, "
            f"but worker {task.worker} was asked for round {task.round}."
        )
    if update.kept is not task.kept:  # as it is where the worker is in this process
        _check_units(who, update.kept, task, units)
    if update.samples < 1 or not math.isfinite(update.loss):
        raise UpdateError(
            f"{who} reported {update.samples} samples and a loss of {update.loss}; "
            "its training has probably diverged: a lower learning_rate may help."
        )


def _check_units(who: str, kept: Kept, task: Task, units: UnitMap) -> None:
    check_kept(units, kept)
    if bool((kept & ~task.kept).any()):
        raise UpdateError(f"{who} sent units that were not part of its sub-model.")
    if task.pruning is None and not torch.equal(kept, task.kept):
        raise UpdateError(f"{who} pruned its sub-model without being told to.")


def check_tensors(update: Update, units: UnitMap) -> None:
    """Refuse tensors of wrong names, shapes or values."""
    who = f"worker {update.worker}"
    expected = cut_shapes(units, update.kept)
    if update.state.keys() != expected.keys():
        differing = min(update.state.keys() ^ expected.keys())
        raise UpdateError(f"{who} sent a state that differs in the tensor {differing!r}.")
    for name, tensor in update.state.items():
        if tensor.shape != expected[name]:
            raise UpdateError(
                f"{who} sent {name!r} of shape {tuple(tensor.shape)}, "
                f"but its units make {expected[name]}."
            )
    if (odd := first_not_finite(update.state)) is not None:
        raise UpdateError(
            f"{who} sent {odd!r} with values that are not finite; "
            "its training has probably diverged: a lower learning_rate may help."
        )
    variances = (f"{name}.running_var" for name in units.batch_norms)
    if (odd := _first_negative(update.state, variances)) is not None:
        raise UpdateError(f"{who} sent {odd!r} with negative variances.")


def _reference(task: Task, kept: Kept, units: UnitMap) -> State:
    """What the worker was given, cut to what it still has; only to be read."""
    if kept is task.kept or torch.equal(kept, task.kept):
        return dict(task.state)
    return recut(task.state, units, task.kept, kept)


def _first_negative(state: State, names: Iterable[str]) -> str | None:
    """The name of a tensor with a negative entry; None where there is none."""
    tensors = {name: state[name] for name in names if name in state}
    if not tensors or not bool((torch.cat([t.flatten() for t in tensors.values()]) < 0).any()):
        return None
    return next(name for name, tensor in tensors.items() if bool((tensor < 0).any()))
