"""DGC: send the largest changes and save up the rest.

Lin et al. 2018, "Deep Gradient Compression". The paper's AdaptCL+DGC applies it to the change of
the weights over a round. Of each tensor only the largest entries travel. What is not sent is
remembered and added to the next round's change, so nothing is lost but time. If the server does
not use an update, that round's change is lost, as with any codec; what was waiting before it
keeps waiting. Entries are chosen tensor by tensor, as the authors do: layers with small changes
would otherwise hardly ever have a turn.

Positions travel as indexes, four bytes for each entry sent, or as a mask, one bit for each entry of
the tensor, whichever is smaller: indexes are if less than one entry in 32 is sent. If almost all
entries are to be sent, all are, because positions would cost more than they save.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from adaptcl.codecs.codec import (
    WHOLE,
    Memory,
    Parcel,
    Payload,
    Reader,
    add_changes,
    entry,
    pack_bits,
    unpack_bits,
)
from adaptcl.errors import UpdateError
from adaptcl.settings import setting
from adaptcl.units import State, cut, put_back

VALUES, INDEXES, MASK = "values", "indexes", "mask"  # labels of what travels of a change

_VALUE_BYTES = _INDEX_BYTES = 4

_SMALL = 256  # tensors with fewer entries are sent entirely: there is nothing to save on them


@dataclass(frozen=True)
class DGCSettings:
    """How sparse changes are, and how soon."""

    dgc_sparsity: float = setting(
        0.9, "share of each tensor that is not sent in a round", at_least=0, below=1
    )
    dgc_warmup: int = setting(
        4, "number of rounds in which the sparsity rises to its full value", at_least=0
    )


class DGC:
    """Sparse changes, with warm-up.

    The authors send gradients, and give what waits to be sent a momentum. Here a round's change
    already comes from SGD with momentum. A second one would enlarge every step by up to
    1/(1 − momentum), and training would diverge.

    While an entry waits, every round finds nearly the same change again and adds it, so what is
    sent in the end overshoots. The higher the sparsity, the less a round may change: at 0.99 keep
    the learning rate or the epochs small.
    """

    summary = "the largest changes, the rest saved up for later rounds (DGC, Lin et al. 2018)"
    Settings = DGCSettings

    def __init__(self, settings: DGCSettings) -> None:
        self._settings = settings

    def sparsity(self, round: int) -> float:
        """The share of entries not sent in a round, counted from 1.

        During warm-up the share sent falls by the same factor each round. For a sparsity of 0.999
        and 4 rounds that gives the authors' 75 %, 93.75 %, 98.4 % and 99.6 %.
        """
        progress = min(1.0, round / (self._settings.dgc_warmup + 1))
        return 1 - math.pow(1 - self._settings.dgc_sparsity, progress)

    def encode(self, parcel: Parcel, memory: Memory) -> tuple[Payload, Memory]:
        unsent = _recall(parcel, memory)
        tensors: State = {}
        for name, trained in parcel.state.items():
            if name not in unsent:
                tensors[entry(WHOLE, name)] = trained
                continue
            waiting = (unsent[name] + (trained.float() - parcel.reference[name].float())).flatten()
            indexes = _largest(waiting, self.sparsity(parcel.round))
            tensors |= pack_sparse(name, waiting[indexes], indexes, len(waiting))
            unsent[name] = waiting.index_fill(0, indexes, 0.0).view(trained.shape)
        return Payload(tensors), _remember(unsent, parcel, memory)

    def size(self, parcel: Parcel) -> int:
        sparsity = self.sparsity(parcel.round)
        return sum(
            sparse_bytes(_entries_sent(tensor.numel(), sparsity), tensor.numel())
            if parcel.has_change(name)
            else tensor.nbytes
            for name, tensor in parcel.state.items()
        )

    def decode(self, payload: Payload, reference: State) -> State:
        return add_changes(payload, reference, unpack_sparse)


def _largest(waiting: Tensor, sparsity: float) -> Tensor:
    """Ascending indexes of the entries to send."""
    count = _entries_sent(waiting.numel(), sparsity)
    if count == waiting.numel():
        return torch.arange(count, device=waiting.device)
    return waiting.abs().topk(count, sorted=False).indices.sort().values


def _entries_sent(size: int, sparsity: float) -> int:
    # Products such as 0.7 × 1000 miss their whole number by a rounding error.
    count = max(1, size - math.floor(sparsity * size + 1e-6))
    return size if size < _SMALL or not saves_bytes(count, size) else count


def _recall(parcel: Parcel, memory: Memory) -> State:
    """What waits to be sent of each trained tensor, cut to the worker's present sub-model."""
    whole = {name: _whole(name, parcel, memory) for name in parcel.state if parcel.has_change(name)}
    return cut(whole, parcel.units, parcel.kept)


def _remember(unsent: State, parcel: Parcel, memory: Memory) -> Memory:
    """The new memory, in which units that are cut at present keep what they had."""
    whole = {name: _whole(name, parcel, memory).clone() for name in unsent}
    put_back(unsent, parcel.units, parcel.kept, into=whole)
    return Memory(whole)


def _whole(name: str, parcel: Parcel, memory: Memory) -> Tensor:
    device = parcel.state[name].device
    if name in memory.tensors:
        return memory.tensors[name].to(device)  # a memory read from a file is on the CPU
    return torch.zeros(parcel.units.shapes[name], dtype=torch.float32, device=device)


def saves_bytes(chosen: int, size: int) -> bool:
    """Whether `chosen` of `size` entries with their positions take fewer bytes than all entries."""
    return chosen * _VALUE_BYTES + _position_bytes(chosen, size) < size * _VALUE_BYTES


def sparse_bytes(chosen: int, size: int) -> int:
    """Bytes of `chosen` of `size` entries, with their positions unless they are all."""
    return chosen * _VALUE_BYTES + (_position_bytes(chosen, size) if chosen < size else 0)


def pack_sparse(name: str, values: Tensor, indexes: Tensor, size: int) -> State:
    """Payload entries for float32 `values` at ascending `indexes` of a tensor of `size`."""
    packed = {entry(VALUES, name): values}
    if len(indexes) == size:
        return packed
    if _position_bytes(len(indexes), size) == len(indexes) * _INDEX_BYTES:
        packed[entry(INDEXES, name)] = indexes.to(torch.int32)
    else:
        mask = torch.zeros(size, dtype=torch.bool, device=indexes.device)
        packed[entry(MASK, name)] = pack_bits(mask.index_fill_(0, indexes, True))
    return packed


def unpack_sparse(reader: Reader, name: str, shape: tuple[int, ...]) -> Tensor:
    """The tensor, with zeros where nothing was sent; impossible positions are refused."""
    size = math.prod(shape)
    values = reader.take(entry(VALUES, name), torch.float32, (None,))
    if reader.holds(entry(INDEXES, name)):
        indexes = reader.take(entry(INDEXES, name), torch.int32, (len(values),)).long()
    elif reader.holds(entry(MASK, name)):
        mask = reader.take(entry(MASK, name), torch.uint8, (math.ceil(size / 8),))
        indexes = unpack_bits(mask).nonzero().flatten()
    else:
        indexes = torch.arange(size, device=values.device)
    if len(indexes) != len(values):
        raise UpdateError(
            f"An update has {len(values)} values for {len(indexes)} positions of {name!r}."
        )
    if len(indexes) and (int(indexes[0]) < 0 or int(indexes[-1]) >= size):
        raise UpdateError(f"An update has positions outside of {name!r}, which has {size} entries.")
    if bool((indexes.diff() <= 0).any()):
        raise UpdateError(f"An update has positions of {name!r} twice or out of order.")
    tensor = torch.zeros(size, dtype=values.dtype, device=values.device)
    tensor[indexes] = values
    return tensor.view(shape)


def _position_bytes(chosen: int, size: int) -> int:
    return min(chosen * _INDEX_BYTES, math.ceil(size / 8))
