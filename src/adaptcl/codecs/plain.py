"""The tensors of the sub-model as they are: four bytes a parameter, nothing lost."""

from __future__ import annotations

from dataclasses import dataclass

from adaptcl.codecs.changes import Reader
from adaptcl.codecs.codec import Memory, Parcel, Payload
from adaptcl.units import State


@dataclass(frozen=True)
class PlainSettings:
    """Nothing to set."""


class Plain:
    """What the paper's methods send."""

    summary = "the tensors as they are"
    Settings = PlainSettings

    def __init__(self, settings: PlainSettings) -> None:
        pass

    def encode(self, parcel: Parcel, memory: Memory) -> tuple[Payload, Memory]:
        """The trained tensors under their own names."""
        return Payload(dict(parcel.state)), memory

    def size(self, parcel: Parcel) -> int:
        """All of the tensors."""
        return sum(tensor.nbytes for tensor in parcel.state.values())

    def decode(self, payload: Payload, reference: State) -> State:
        """Exactly what was encoded."""
        reader = Reader(payload)
        state = {
            name: reader.take(name, tensor.dtype, tensor.shape)
            for name, tensor in reference.items()
        }
        reader.close()
        return state
