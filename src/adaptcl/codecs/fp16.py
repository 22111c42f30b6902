"""Send every trained tensor, or its change, in half precision.

A change is small beside its weights, so rounding it loses far less than rounding the weights.
It is scaled to its largest entry first; otherwise changes below 3·10⁻⁸ would become zero.
Buffers travel whole: adding a rounded change could make a running variance negative.

A model on its way to a worker is a change from zero: each weight arrives within 2⁻¹¹ of itself.
"""

from __future__ import annotations

import torch
from torch import Tensor

from adaptcl.codecs.changes import CHANGE, SCALE, Reader, add_changes, entry, scaled_changes
from adaptcl.codecs.codec import Memory, NoSettings, Parcel, Payload
from adaptcl.units import State


class FP16:
    """Changes in float16, with one float32 scale a tensor."""

    summary = "changes in half precision, and models too"
    Settings = NoSettings
    encodes_models = True

    def __init__(self, settings: NoSettings) -> None:
        pass

    def encode(self, parcel: Parcel, memory: Memory) -> tuple[Payload, Memory]:
        return scaled_changes(parcel, Parcel.has_change, _halved), memory

    def size(self, parcel: Parcel) -> int:
        return sum(
            2 * tensor.numel() + 4 if parcel.has_change(name) else tensor.nbytes
            for name, tensor in parcel.state.items()
        )

    def decode(self, payload: Payload, reference: State) -> State:
        """Each change comes back within 2⁻¹¹ of itself, or 2⁻²⁴ of the largest."""
        return add_changes(payload, reference, _read)


def _read(reader: Reader, name: str, shape: tuple[int, ...]) -> Tensor:
    change = reader.take(entry(CHANGE, name), torch.float16, shape)
    return change.float() * reader.take(entry(SCALE, name), torch.float32, ())


def _halved(change: Tensor) -> tuple[Tensor, Tensor]:
    scale = change.abs().max() if change.numel() else change.new_zeros(())
    return (change / torch.where(scale > 0, scale, 1.0)).half(), scale
