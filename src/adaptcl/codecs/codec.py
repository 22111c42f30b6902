"""How a trained sub-model becomes bytes on the way to the server.

A codec may send the change against what the worker received instead of the tensors themselves,
and may remember what it left unsent. What it remembers belongs to the worker (its *memory*), so
that a codec itself has no state and can be shared.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from adaptcl.units import Kept, State, UnitMap


@dataclass(frozen=True)
class Payload:
    """What travels: named tensors and nothing else."""

    tensors: State

    @property
    def nbytes(self) -> int:
        """Bytes on the wire."""
        return sum(t.nbytes for t in self.tensors.values())


@dataclass(frozen=True)
class Memory:
    """What a codec remembers for one worker between rounds, in the shapes of the whole model.

    It is what the latest update has left that the server *used*: by one that was dropped, refused
    or given up, nothing was sent, and the codec goes on from what it knew before it.
    """

    tensors: State = field(default_factory=dict)


@dataclass(frozen=True)
class Parcel:
    """All a codec may look at: the trained sub-model and what the worker had received."""

    units: UnitMap
    kept: Kept
    state: State
    """The trained sub-model, in the shapes of `kept`; a tied tensor under its first name only."""
    reference: State
    """What the worker received for this round, cut to `kept`."""
    round: int

    def has_change(self, name: str) -> bool:
        """Whether a tensor is trained, so that its change may be sent in its place."""
        return name in self.units.parameters and self.state[name].is_floating_point()


class Codec(Protocol):
    """One way to put an update on the wire."""

    summary: str

    def encode(self, parcel: Parcel, memory: Memory) -> tuple[Payload, Memory]:
        """The bytes to send, and the memory for the worker's next round."""
        ...

    def size(self, parcel: Parcel) -> int | None:
        """Bytes that `encode` sends for a parcel of such tensors, whatever their values are.

        So it can be asked before anything is trained, with tensors that have no values. It must be
        exact; None where it depends on the values. A simulation then learns when an update arrives
        by training it.
        """
        ...

    def decode(self, payload: Payload, reference: State) -> State:
        """The sub-model the server understands, given what it had sent (cut to the same units).

        Names, shapes and types are checked here. Whether the numbers are finite is asked once of
        what comes out, whatever the codec, in `training/wire.py`; so what is not finite must not
        be hidden.
        """
        ...
