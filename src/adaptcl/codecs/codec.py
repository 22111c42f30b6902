"""What a codec is and what it is given, and the plainest of them.

A codec turns a trained sub-model into the tensors that travel to the server, and back. It may send
the change against what the worker received, and it may remember what it did not send. What it
remembers belongs to the worker (`Memory`), so a codec has no state and all workers share one.

Some codecs also encode what the server sends to a worker. To them a model is a change from zero.

A `Reader` reads a payload without trust, because another machine made it. An entry with another
name, type or shape than agreed is refused in one sentence. Values are checked later, in the decoded
sub-model: finite changes can still add up to infinity.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from adaptcl.errors import UpdateError
from adaptcl.units import Kept, State, UnitMap


@dataclass(frozen=True)
class Payload:
    """What travels: named tensors and nothing else."""

    tensors: State
    title: str = "An update"  # how a sentence about it begins

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in self.tensors.values())


@dataclass(frozen=True)
class Memory:
    """What a codec remembers for one worker between rounds, in the shapes of the whole model.

    It is the memory after the latest update that the server *used*. An update that was dropped,
    refused or given up sent nothing, so the codec continues from what it knew before it.
    """

    tensors: State = field(default_factory=dict)


@dataclass(frozen=True)
class Parcel:
    """All a codec may look at: a sub-model, and what the other side has of it already."""

    units: UnitMap
    kept: Kept
    state: State
    """The sub-model to send, in the shapes of `kept`; a tied tensor under its first name only."""
    reference: State
    """On the way up, what the worker received for this round, cut to `kept`; on the way down,
    zeros."""
    round: int

    def has_change(self, name: str) -> bool:
        """Whether the change of a tensor may be sent in its place: only of what is trained."""
        return name in self.units.parameters and self.state[name].is_floating_point()


class Codec(Protocol):
    """One way to encode updates.

    A class with `encodes_models = True` encodes what goes down to workers too. It then remembers
    nothing there: the memory that `encode` is given is empty, and the one it returns is dropped.
    """

    summary: str

    def encode(self, parcel: Parcel, memory: Memory) -> tuple[Payload, Memory]:
        """What to send, and the memory for the worker's next round."""
        ...

    def size(self, parcel: Parcel) -> int | None:
        """Bytes that `encode` sends for a parcel of such tensors, whatever their values.

        The simulation asks this before training, with tensors that have no values. The answer
        must be exact. It is None if the size depends on the values; the simulation then has to
        train an update before it knows when it arrives.
        """
        ...

    def decode(self, payload: Payload, reference: State) -> State:
        """The sub-model that the payload means, given the parcel's reference.

        Names, shapes and types are checked here. Values are not: the network's gate checks what
        comes out, so a codec must not hide what is not finite.
        """
        ...


@dataclass(frozen=True)
class Codecs:
    """The codecs of a run, one for each way."""

    up: Codec  # for updates on the way to the server
    down: Codec  # for models on the way to workers


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
        if not _fits(tensor.shape, shape):
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


def pack_bits(mask: Tensor) -> Tensor:
    """Eight entries of a mask in a byte, the first in the lowest bit."""
    padded = F.pad(mask.to(torch.uint8), (0, -len(mask) % 8))
    return (padded.view(-1, 8) << _places(mask)).sum(1, dtype=torch.uint8)


def unpack_bits(packed: Tensor) -> Tensor:
    """The mask, with zeros behind it where it did not fill the last byte."""
    return ((packed[:, None] >> _places(packed)) & 1).flatten().bool()


def _places(like: Tensor) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=like.device)


def _fits(shape: torch.Size, wanted: tuple[int | None, ...]) -> bool:
    return len(shape) == len(wanted) and all(
        length in (None, found) for found, length in zip(shape, wanted, strict=True)
    )


@dataclass(frozen=True)
class NoSettings:
    """The settings of a codec that has none."""


class BothWays:
    """What the codecs share that have no settings, and encode models as well as updates."""

    Settings = NoSettings
    encodes_models = True

    def __init__(self, settings: NoSettings) -> None:
        pass


class Plain(BothWays):
    """Four bytes a parameter and nothing lost, as the paper's methods send them."""

    summary = "the tensors as they are"

    def encode(self, parcel: Parcel, memory: Memory) -> tuple[Payload, Memory]:
        return Payload(dict(parcel.state)), memory

    def size(self, parcel: Parcel) -> int:
        return sum(tensor.nbytes for tensor in parcel.state.values())

    def decode(self, payload: Payload, reference: State) -> State:
        reader = Reader(payload)
        state = {
            name: reader.take(name, tensor.dtype, tensor.shape)
            for name, tensor in reference.items()
        }
        reader.close()
        return state
