"""Whether a worker that was told to prune has cut what it was told to cut.

A sub-model that is smaller than asked comes back with the next update and can only be pruned
further, so a worker that cuts at will could empty the model. Where the server sent the importance
of the units, the cut follows from the task: the numbers that were sent are sorted and parameters
are counted, with the same outcome on every machine. Where the worker orders the units by its own
data, nobody else knows which of them go, but it is known how far the pruning goes, to within one
block of units. To cut less than asked costs nothing but time and is not refused then.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from adaptcl.codecs.codec import Codec, Memory, Parcel, Payload
from adaptcl.errors import UpdateError
from adaptcl.pruning import prune
from adaptcl.pruning.budget import block_sizes
from adaptcl.training.batches import steps
from adaptcl.training.task import Pruning, Task, Update
from adaptcl.units import (
    FIXED,
    CutOnDemand,
    Kept,
    State,
    UnitMap,
    check_kept,
    cut_shapes,
    parameters,
    recut,
)
from adaptcl.units.finite import first_not_finite, largest

_ROUNDING = 1e-9
"""Relative room for the rounding errors of what is compared with a whole number here."""


def check_cut(who: str, before: Kept, after: Kept, told: Pruning, units: UnitMap) -> None:
    """Refuse kept units that the pruning cannot have left of those `before`."""
    if told.importance is not None:
        expected = prune(
            units, before, told.importance, told.rate, told.min_retention, told.width_multiple
        )
        if not torch.equal(after, expected):
            raise UpdateError(
                f"{who} kept {int(after.sum())} units, which are not the {int(expected.sum())} "
                "that the pruning it was told to do leaves."
            )
        return
    left, fewest = parameters(units, after), fewest_parameters(units, before, told)
    if left < fewest * (1 - _ROUNDING):
        raise UpdateError(
            f"{who} was told to prune {told.rate:.1%} and cut away far more: of "
            f"{parameters(units, before)} parameters it kept {left}, and at least "
            f"{math.ceil(fewest)} stay."
        )


def fewest_parameters(units: UnitMap, kept: Kept, told: Pruning) -> float:
    """What a pruning of the units `kept` leaves at least, in whatever order they go.

    Blocks of units go until the rest fits the budget, and the last of them may take more than was
    missing. Where that falls below the retention γ_min, it stays, and the rest is over the budget.
    """
    budget = (1 - told.rate) * parameters(units, kept)
    least = told.min_retention * parameters(units, units.everything())
    return max(budget - _largest_block(units, kept, told.width_multiple), min(budget, least))


def _largest_block(units: UnitMap, kept: Kept, width_multiple: int) -> float:
    """No block that is cut from the units `kept` or fewer has more parameters than this.

    The units of a layer need not be equal: a later layer may read only some of them.
    """
    costs = torch.where(kept, _costs(units, kept), 0.0)
    largest = 0.0
    for layer, size in zip(units.layers, block_sizes(units, width_multiple).tolist(), strict=True):
        here = costs[layer.units.start : layer.units.stop]
        largest = max(largest, float(here.topk(min(size, len(here))).values.sum()))
    return largest


def _costs(units: UnitMap, kept: Kept) -> Tensor:
    """How many parameters go with each unit; those that go with two units count for both."""
    shapes = cut_shapes(units, kept)
    costs = torch.zeros(units.count, dtype=torch.float64)
    for slot in units.slots:
        if slot.tensor in units.parameters:
            shape = shapes[slot.tensor]
            others = math.prod(shape) // shape[slot.dim]
            known = slot.ids[slot.ids != FIXED]
            costs.index_add_(0, known, torch.full((len(known),), float(others)).double())
    return costs


# An update's way to the server: encoded by the worker, decoded and checked by the server.
#
# Nothing a worker sends touches the global model before it has passed here. A worker may be
# broken or hostile: its units must be those it was given, less what it was told to cut, and its
# tensors must have the shapes of its units. Every number must be finite, variances must not be
# negative, and whole numbers must be those sent out, except that batches are counted. Numbers are
# looked at once, here, in what the codec made of the payload: that holds for any codec, and
# finite changes can still add up to infinity.
#
# A tied tensor travels under the first of its names only. Whatever a codec does to it, and
# whatever a worker would like to send under another name, it stays one tensor. Constants do not
# travel.

_MOST_FIRST_LOSS = 1e6
"""The loss on a first batch over the group lasso's penalty then: around a thousandth, and never
more than this unless the model's first weights are nearly zero or its outputs absurd."""

_MOST_CALLS = 1000
"""How often a step may call the same normalisation: more than once where layers share it, where a
sequence runs through it, or where activations are computed again to save memory."""

_MOST_GROWTH = 1e6
"""How many times the largest number of a parameter, or 1, its largest may be after a round."""

_MOST_MEASURED = 1e15
"""The same for what is measured: the variance of raw inputs may be a million millions."""

_MOST_COUNTED = 2**40
"""Batches that a worker may have counted in a round, however many samples it says it has. Rounds
of a whole life then add up to nothing that overflows."""


def pack(
    update: Update, task: Task, units: UnitMap, codec: Codec, memory: Memory
) -> tuple[Payload, Memory]:
    """What the worker puts on the wire, and what its codec remembers."""
    reference = _once(_reference(task, update.kept, units), units)
    state = _once(update.state, units)
    return codec.encode(Parcel(units, update.kept, state, reference, task.round), memory)


def payload_bytes(task: Task, units: UnitMap, codec: Codec) -> int | None:
    """How large the update of a task will be, if the task prunes nothing; None if the codec cannot
    tell before the update is trained."""
    state = task.state
    if isinstance(state, CutOnDemand):
        state = state.without_values()
    sent = _once(state, units)
    return codec.size(Parcel(units, task.kept, sent, sent, task.round))


def unpack(payload: Payload, header: Update, task: Task, units: UnitMap, codec: Codec) -> Update:
    """The update as the server understands it, checked against the task it answers.

    `header` carries everything but the tensors.
    """
    check_header(header, task, units)
    reference = _reference(task, header.kept, units)
    state = codec.decode(payload, _once(reference, units))
    state |= {name: reference[name] for name in units.constants & reference.keys()}
    further_names = {name: state[first] for name, first in units.tied.items()}
    update = dataclasses.replace(header, state={**state, **further_names})
    check_tensors(update, units)
    check_magnitudes(update, reference, units)
    check_whole_numbers(update, task, reference, units)
    return update


def check_header(update: Update, task: Task, units: UnitMap) -> None:
    """Refuse an update that does not answer the task."""
    who = f"worker {update.worker}"
    if (update.worker, update.round) != (task.worker, task.round):
        raise UpdateError(
            f"{who} answered for round {update.round}, "
            f"but worker {task.worker} was asked for round {task.round}."
        )
    # Where the worker is in this process, it is the very tensor that was sent out.
    if update.kept is not task.kept or task.pruning is not None:
        _check_units(who, update.kept, task, units)
    if update.cut is not None and task.pruning is None:
        raise UpdateError(f"{who} sent the figures of a pruning that it was not told to do.")
    if update.samples < 1 or not math.isfinite(update.loss):
        raise UpdateError(
            f"{who} reported {update.samples} samples and a loss of {update.loss}; "
            "its training has probably diverged: a lower learning_rate may help."
        )
    _check_lasso(who, update.lasso, task.recipe.strength)


def _check_lasso(who: str, lasso: float | None, strength: float) -> None:
    """Other workers may be given what this one has found."""
    most = _MOST_FIRST_LOSS * strength / (1 - strength)
    if lasso is not None and not 0 <= lasso <= most:
        raise UpdateError(
            f"{who} reported a λ of {lasso:g} for its group lasso, but with a strength of "
            f"{strength:g} it is between 0 and {most:g}."
        )


def _check_units(who: str, kept: Kept, task: Task, units: UnitMap) -> None:
    check_kept(units, kept)
    if bool((kept & ~task.kept).any()):
        raise UpdateError(f"{who} sent units that were not part of its sub-model.")
    if task.pruning is not None:
        check_cut(who, task.kept, kept, task.pruning, units)
    elif not torch.equal(kept, task.kept):
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
    numbers = {n: tensor for n, tensor in update.state.items() if n not in units.constants}
    if (odd := first_not_finite(numbers)) is not None:
        raise UpdateError(
            f"{who} sent {odd!r} with values that are not finite; "
            "its training has probably diverged: a lower learning_rate may help."
        )
    variances = {n: tensor for n, tensor in update.state.items() if n in units.variances}
    if (odd := _first_outside(variances, 0.0, math.inf)) is not None:
        raise UpdateError(f"{who} sent {odd!r} with negative variances.")


def check_magnitudes(update: Update, reference: State, units: UnitMap) -> None:
    """Refuse finite numbers that no training leads to: merged, they would ruin the model, and the
    training of all the others would be blamed for it."""
    floats = {
        name: tensor
        for name, tensor in update.state.items()
        if tensor.is_floating_point() and tensor.numel() and name not in units.constants
    }
    for name, found in zip(floats, largest(list(floats.values())), strict=True):
        limit = _MOST_GROWTH if name in units.parameters else _MOST_MEASURED
        if found > limit and found > limit * largest([reference[name]])[0]:
            raise UpdateError(
                f"worker {update.worker} sent {name!r} with numbers of up to {found:.0e}; "
                "its training has probably diverged: a lower learning_rate may help."
            )


def check_whole_numbers(update: Update, task: Task, reference: State, units: UnitMap) -> None:
    """Refuse whole numbers that training cannot have made of those in `reference`.

    Nobody trains an index, and one that points elsewhere would break the model of everybody.
    """
    who = f"worker {update.worker}"
    rises: State = {}
    for name, tensor in update.state.items():
        if name in units.counters:
            rises[name] = tensor.long() - reference[name].to(tensor.device).long()
        elif name in units.integers and not torch.equal(tensor, reference[name].to(tensor.device)):
            raise UpdateError(
                f"{who} sent {name!r} with other whole numbers than it was given; "
                "if the model changes them in training, make it a buffer of floats."
            )
    recipe = task.recipe
    most = _MOST_CALLS * steps(update.samples, recipe.batch_size, recipe.epochs)
    if (odd := _first_outside(rises, 0, min(most, _MOST_COUNTED))) is not None:
        raise UpdateError(
            f"{who} sent {odd!r} with a number of batches that it cannot have seen in a round."
        )


def _reference(task: Task, kept: Kept, units: UnitMap) -> State:
    """What the worker was given, cut to what it still has; only to be read."""
    if kept is task.kept or torch.equal(kept, task.kept):
        return dict(task.state)
    return recut(task.state, units, task.kept, kept)


def _once(state: Mapping[str, Tensor], units: UnitMap) -> State:
    """The tensors as they travel: each under one name, and no constants."""
    aside = units.tied.keys() | units.constants
    return {name: tensor for name, tensor in state.items() if name not in aside}


def _first_outside(tensors: State, least: float, most: float) -> str | None:
    """The name of a tensor with an entry that is not between the two; None where there is none."""
    if not tensors or _within(torch.cat([t.flatten() for t in tensors.values()]), least, most):
        return None
    return next(name for name, tensor in tensors.items() if not _within(tensor, least, most))


def _within(tensor: Tensor, least: float, most: float) -> bool:
    return bool(((tensor >= least) & (tensor <= most)).all())
