"""Send every trained matrix or filter bank, or its change, in eight bits.

Each row (the filter of an output channel) has its own scale, because changes differ far more
between units than within one. Vectors and buffers are a thousandth of the bytes and travel whole.

Everything is rounded to the nearest step. Random rounding would be right on average, but its error
is twice as large in the square, and nothing adds up that would have to cancel: the server keeps
every model in full precision (`training/wire.py`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from adaptcl.codecs.changes import CHANGE, SCALE, Reader, add_changes, entry, scaled_changes
from adaptcl.codecs.codec import Memory, NoSettings, Parcel, Payload
from adaptcl.units import State

_LARGEST = 127
"""−128 is not used, so that both signs reach equally far."""


class Int8:
    """Changes in int8, with one float32 scale a row."""

    summary = "changes in eight bits, and models too"
    Settings = NoSettings
    encodes_models = True

    def __init__(self, settings: NoSettings) -> None:
        pass

    def encode(self, parcel: Parcel, memory: Memory) -> tuple[Payload, Memory]:
        return scaled_changes(parcel, _has_rows, _quantised), memory

    def size(self, parcel: Parcel) -> int:
        return sum(
            tensor.numel() + 4 * len(tensor) if _has_rows(parcel, name) else tensor.nbytes
            for name, tensor in parcel.state.items()
        )

    def decode(self, payload: Payload, reference: State) -> State:
        """Each change comes back within 1/254 of the largest in its row."""
        return add_changes(payload, reference, _read)


def _has_rows(parcel: Parcel, name: str) -> bool:
    return parcel.has_change(name) and parcel.state[name].ndim > 1


def _read(reader: Reader, name: str, shape: tuple[int, ...]) -> Tensor:
    change = reader.take(entry(CHANGE, name), torch.int8, shape)
    scale = reader.take(entry(SCALE, name), torch.float32, shape[:1])
    return change.float() * _along_rows(scale, shape)


def _quantised(change: Tensor) -> tuple[Tensor, Tensor]:
    scale = change.abs().flatten(1).amax(1) / _LARGEST
    steps = change / _along_rows(torch.where(scale > 0, scale, 1.0), change.shape)
    return steps.round().clamp(-_LARGEST, _LARGEST).to(torch.int8), scale


def _along_rows(scale: Tensor, shape: tuple[int, ...]) -> Tensor:
    return scale.view(shape[:1] + (1,) * (len(shape) - 1))
