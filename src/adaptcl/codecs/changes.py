"""Reads the changes of tensors from a payload without trust.

Another machine made the payload. An entry with another name, type or shape than agreed is refused
in one sentence. Values are checked later, in the decoded sub-model: finite changes can still add
up to infinity.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from adaptcl.codecs.codec import Payload
from adaptcl.errors import UpdateError
from adaptcl.units import State

WHOLE = "whole"  # label of a tensor that travels itself, not its change
_MAX_NAMED = 3  # how many unexpected entries an error names: the sender chooses how many there are


def entry(label: str, name: str) -> str:
    """The name under which something about a tensor travels."""
    return f"{label}:{name}"


class Reader:
    """Takes the entries of a payload one by one and checks them; in the end none may be left."""

    def __init__(self, payload: Payload) -> None:
        self._left = dict(payload.tensors)
        self._title = payload.title

    def holds(self, name: str) -> bool:
        return name in self._left

    def take(self, name: str, dtype: torch.dtype, shape: tuple[int | None, ...]) -> Tensor:
        """The entry of that name. A length of None in `shape` stands for any."""
        if name not in self._left:
            raise UpdateError(f"{self._title} lacks {name!r}.")
        tensor = self._left.pop(name)
        if tensor.dtype != dtype:
            raise UpdateError(
                f"{self._title} has {name!r} as {tensor.dtype}, but it must be {dtype}."
            )
        if tensor.shape != shape and not _fits(tensor.shape, shape):
            wanted = ", ".join("any" if length is None else str(length) for length in shape)
            raise UpdateError(
                f"{self._title} has {name!r} in the shape {list(tensor.shape)}, "
                f"but it must be [{wanted}]."
            )
        return tensor

    def close(self) -> None:
        """Refuse a payload with entries that nobody took."""
        if self._left:
            unknown = [f"{name!r:.100}" for name in sorted(self._left)[:_MAX_NAMED]]
            if more := len(self._left) - len(unknown):
                unknown.append(f"and {more} more")
            raise UpdateError(f"{self._title} holds what has no place in it: {', '.join(unknown)}.")


def add_changes(
    payload: Payload, reference: State, change: Callable[[Reader, str, tuple[int, ...]], Tensor]
) -> State:
    """The sub-model that a payload of changes makes of `reference`.

    Tensors that travelled whole are taken as they are; `change` reads the change of the others.
    Only floats have changes.
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
