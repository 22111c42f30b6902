"""Half precision: the change of every trained tensor in two bytes a parameter.

The change is small beside the weights, so rounding it costs far less than rounding the weights.
It is scaled to its largest entry first; without that, changes below 3·10⁻⁸ would become zero.
Buffers travel whole: a running variance is the small difference of its old value and its change,
and a rounded change could make it negative.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from adaptcl.codecs.changes import CHANGE, SCALE, Reader, add_changes, entry, scaled_changes
from adaptcl.codecs.codec import Memory, Parcel, Payload
from adaptcl.units import State


@dataclass(frozen=True)
class FP16Settings:
    """Nothing to set."""


class FP16:
    """float16 changes with one float32 scale a tensor."""

    summary = "changes in half precision"
    Settings = FP16Settings

    def __init__(self, settings: FP16Settings) -> None:
        pass

    def encode(self, parcel: Parcel, memory: Memory) -> tuple[Payload, Memory]:
        """Change and scale of what is trained, the rest whole."""
        return scaled_changes(parcel, Parcel.has_change, _halved), memory

    def size(self, parcel: Parcel) -> int:
        """Two bytes for each entry of a change, and four for its scale."""
        return sum(
            2 * tensor.numel() + 4 if parcel.has_change(name) else tensor.nbytes
            for name, tensor in parcel.state.items()
        )

    def decode(self, payload: Payload, reference: State) -> State:
        """What was encoded, each change within 2⁻¹¹ of itself (or 2⁻²⁴ of the largest)."""
        return add_changes(payload, reference, _read)


def _read(reader: Reader, name: str, shape: tuple[int, ...]) -> Tensor:
    change = reader.take(entry(CHANGE, name), torch.float16, shape)
    return change.float() * reader.take(entry(SCALE, name), torch.float32, ())


def _halved(change: Tensor) -> tuple[Tensor, Tensor]:
    scale = change.abs().max() if change.numel() else change.new_zeros(())
    return (change / torch.where(scale > 0, scale, 1.0)).half(), scale
