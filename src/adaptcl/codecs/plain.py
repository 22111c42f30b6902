"""Send the tensors of a sub-model as they are, as the paper's methods do."""

from __future__ import annotations

from adaptcl.codecs.codec import Memory, NoSettings, Parcel, Payload, Reader
from adaptcl.units import State


class Plain:
    """Four bytes a parameter, and nothing lost."""

    summary = "the tensors as they are"
    Settings = NoSettings
    encodes_models = True

    def __init__(self, settings: NoSettings) -> None:
        pass

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
