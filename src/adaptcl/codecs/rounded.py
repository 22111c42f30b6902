"""Send every trained tensor, or its change, in two bytes an entry or in one.

A change is small beside its weights, so rounding it loses far less than rounding the weights. It is
scaled to its largest entry first; in half precision, changes below 3·10⁻⁸ would become zero
otherwise. A model on its way to a worker is a change from zero. Buffers travel whole: adding a
rounded change could make a running variance negative.

Everything is rounded to the nearest step. Random rounding would be right on average, but its
squared error is twice as large. And no errors add up here that would have to cancel on average: the
server keeps every model in full precision (`training/wire.py`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from adaptcl.codecs.codec import (
    WHOLE,
    BothWays,
    Memory,
    Parcel,
    Payload,
    Reader,
    add_changes,
    entry,
)
from adaptcl.units import State

CHANGE, SCALE = "change", "scale"
"""Labels of a rounded change, and of the factor to multiply it with."""
_LARGEST = 127  # −128 is not used, so that both signs reach equally far


class FP16(BothWays):
    """Changes in float16, with one float32 scale a tensor."""

    summary = "changes in half precision, and models too"

    def encode(self, parcel: Parcel, memory: Memory) -> tuple[Payload, Memory]:
        return scaled_changes(parcel, Parcel.has_change, _halved), memory

    def size(self, parcel: Parcel) -> int:
        return sum(
            2 * tensor.numel() + 4 if parcel.has_change(name) else tensor.nbytes
            for name, tensor in parcel.state.items()
        )

    def decode(self, payload: Payload, reference: State) -> State:
        """Each change comes back within 2⁻¹¹ of itself, or 2⁻²⁴ of the largest."""
        return add_changes(payload, reference, _read_halved)


class Int8(BothWays):
    """Changes in int8, with one float32 scale a row.

    A row is the filter of an output channel. It has a scale because changes differ far more between
    units than within one. Vectors are a thousandth of the bytes and travel whole.
    """

    summary = "changes in eight bits, and models too"

    def encode(self, parcel: Parcel, memory: Memory) -> tuple[Payload, Memory]:
        return scaled_changes(parcel, _has_rows, _quantised), memory

    def size(self, parcel: Parcel) -> int:
        return sum(
            tensor.numel() + 4 * len(tensor) if _has_rows(parcel, name) else tensor.nbytes
            for name, tensor in parcel.state.items()
        )

    def decode(self, payload: Payload, reference: State) -> State:
        """Each change comes back within 1/254 of the largest in its row."""
        return add_changes(payload, reference, _read_quantised)


def scaled_changes(
    parcel: Parcel,
    shrinks: Callable[[Parcel, str], bool],
    scaled: Callable[[Tensor], tuple[Tensor, Tensor]],
) -> Payload:
    """Encode the change of each tensor that shrinks by `scaled`; send the other tensors whole."""
    tensors: State = {}
    for name, trained in parcel.state.items():
        if shrinks(parcel, name):
            change, scale = scaled(trained.float() - parcel.reference[name].float())
            tensors[entry(CHANGE, name)] = change
            tensors[entry(SCALE, name)] = scale
        else:
            tensors[entry(WHOLE, name)] = trained
    return Payload(tensors)


def _read_halved(reader: Reader, name: str, shape: tuple[int, ...]) -> Tensor:
    change = reader.take(entry(CHANGE, name), torch.float16, shape)
    return change.float() * reader.take(entry(SCALE, name), torch.float32, ())


def _halved(change: Tensor) -> tuple[Tensor, Tensor]:
    scale = change.abs().max() if change.numel() else change.new_zeros(())
    return (change / torch.where(scale > 0, scale, 1.0)).half(), scale


def _has_rows(parcel: Parcel, name: str) -> bool:
    return parcel.has_change(name) and parcel.state[name].ndim > 1


def _read_quantised(reader: Reader, name: str, shape: tuple[int, ...]) -> Tensor:
    change = reader.take(entry(CHANGE, name), torch.int8, shape)
    scale = reader.take(entry(SCALE, name), torch.float32, shape[:1])
    return change.float() * _along_rows(scale, shape)


def _quantised(change: Tensor) -> tuple[Tensor, Tensor]:
    scale = change.abs().flatten(1).amax(1) / _LARGEST
    steps = change / _along_rows(torch.where(scale > 0, scale, 1.0), change.shape)
    return steps.round().clamp(-_LARGEST, _LARGEST).to(torch.int8), scale


def _along_rows(scale: Tensor, shape: tuple[int, ...]) -> Tensor:
    return scale.view(shape[:1] + (1,) * (len(shape) - 1))
