"""Changes of tensors on a wire: putting them there, and reading them with no trust in them.

A payload holds named tensors that another machine made. Whatever is not exactly as agreed is
refused in one sentence before it can reach the global model. What the numbers are is looked at
later, in the sub-model they make: finite changes can still add up to infinity.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from adaptcl.codecs.codec import Parcel, Payload
from adaptcl.errors import UpdateError
from adaptcl.units import State

WHOLE = "whole"
"""The part that is a tensor itself rather than something about its change."""
_NAMED = 3
"""How many entries that nobody asked for are named: whoever sends them chooses how many."""
CHANGE, SCALE = "change", "scale"
"""The parts that are a change in few bits, and what to multiply it with."""


def entry(part: str, name: str) -> str:
    """The name under which a part of a tensor travels."""
    return f"{part}:{name}"


def scaled_changes(
    parcel: Parcel,
    shrinks: Callable[[Parcel, str], bool],
    scaled: Callable[[Tensor], tuple[Tensor, Tensor]],
) -> Payload:
    """The change of each tensor that shrinks, as `scaled` gives it, and all other tensors whole."""
    tensors: State = {}
    for name, trained in parcel.state.items():
        if shrinks(parcel, name):
            change, scale = scaled(trained.float() - parcel.reference[name].float())
            tensors[entry(CHANGE, name)] = change
            tensors[entry(SCALE, name)] = scale
        else:
            tensors[entry(WHOLE, name)] = trained
    return Payload(tensors)


class Reader:
    """Takes the entries of a payload one by one, checked; at the end nothing may be left."""

    def __init__(self, payload: Payload) -> None:
        self._left = dict(payload.tensors)

    def holds(self, name: str) -> bool:
        """Whether there is such an entry, not taken yet."""
        return name in self._left

    def take(self, name: str, dtype: torch.dtype, shape: tuple[int | None, ...]) -> Tensor:
        """The entry of that name; a length of None may be any."""
        if name not in self._left:
            raise UpdateError(f"An update lacks {name!r}; all that was sent out must come back.")
        tensor = self._left.pop(name)
        if tensor.dtype != dtype:
            raise UpdateError(f"An update has {name!r} as {tensor.dtype}, but it must be {dtype}.")
        if tensor.shape != shape and not _fits(tensor.shape, shape):
            wanted = ", ".join("any" if length is None else str(length) for length in shape)
            raise UpdateError(
                f"An update has {name!r} in the shape {list(tensor.shape)}, "
                f"but it must be [{wanted}]."
            )
        return tensor

    def close(self) -> None:
        """Refuse what nobody asked for."""
        if self._left:
            unknown = [f"{name!r:.100}" for name in sorted(self._left)[:_NAMED]]
            if more := len(self._left) - len(unknown):
                unknown.append(f"and {more} more")
            raise UpdateError(f"An update holds what was never sent out: {', '.join(unknown)}.")


def add_changes(
    payload: Payload, reference: State, change: Callable[[Reader, str, tuple[int, ...]], Tensor]
) -> State:
    """The sub-model that a payload of changes means, given what they are changes of.

    Tensors that travelled whole are taken as they are; for the others `change` reads the change
    of one name and shape. What is not a float has no change and must have travelled whole.
    """
    reader = Reader(payload)
    state: State = {}
    for name, before in reference.items():
        shape = tuple(before.shape)
        if reader.holds(entry(WHOLE, name)) or not before.is_floating_point():
            state[name] = reader.take(entry(WHOLE, name), before.dtype, shape)
        else:
            state[name] = (before + change(reader, name, shape)).to(before.dtype)
    reader.close()
    return state


def _fits(shape: torch.Size, wanted: tuple[int | None, ...]) -> bool:
    return len(shape) == len(wanted) and all(
        length in (None, found) for found, length in zip(shape, wanted, strict=True)
    )
