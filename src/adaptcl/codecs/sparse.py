"""Some entries of a tensor and where they were, in as few bytes as they take.

The places are either indexes, four bytes for each entry sent, or a mask, one bit for each entry
of the tensor: indexes are smaller when less than one entry in 32 is sent. When almost all are
sent, all are, because places then cost more than they save.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from adaptcl.codecs.changes import Reader, entry
from adaptcl.errors import UpdateError
from adaptcl.units import State

VALUES, INDEXES, MASK = "values", "indexes", "mask"

_VALUE_BYTES = _INDEX_BYTES = 4


def worth_places(chosen: int, size: int) -> bool:
    """Whether sending `chosen` of `size` entries with their places is less than sending all."""
    return chosen * _VALUE_BYTES + _place_bytes(chosen, size) < size * _VALUE_BYTES


def packed_bytes(chosen: int, size: int) -> int:
    """Bytes of `chosen` of `size` entries, with their places unless they are all."""
    return chosen * _VALUE_BYTES + (_place_bytes(chosen, size) if chosen < size else 0)


def pack(name: str, values: Tensor, indexes: Tensor, size: int) -> State:
    """The entries of a payload for float32 `values` at rising `indexes` of a tensor of `size`."""
    packed = {entry(VALUES, name): values}
    if len(indexes) == size:
        return packed
    if _place_bytes(len(indexes), size) == len(indexes) * _INDEX_BYTES:
        packed[entry(INDEXES, name)] = indexes.to(torch.int32)
    else:
        packed[entry(MASK, name)] = _bits(indexes, size)
    return packed


def unpack(reader: Reader, name: str, shape: tuple[int, ...]) -> Tensor:
    """The tensor with zeros where nothing was sent; places that cannot be are refused."""
    size = math.prod(shape)
    values = reader.take(entry(VALUES, name), torch.float32, (None,))
    if reader.holds(entry(INDEXES, name)):
        indexes = reader.take(entry(INDEXES, name), torch.int32, (len(values),)).long()
    elif reader.holds(entry(MASK, name)):
        mask = reader.take(entry(MASK, name), torch.uint8, (math.ceil(size / 8),))
        indexes = _set_bits(mask)
    else:
        indexes = torch.arange(size, device=values.device)
    if len(indexes) != len(values):
        raise UpdateError(
            f"An update has {len(values)} values for {len(indexes)} places of {name!r}."
        )
    if len(indexes) and (int(indexes[0]) < 0 or int(indexes[-1]) >= size):
        raise UpdateError(f"An update has places outside of {name!r}, which has {size} entries.")
    if bool((indexes.diff() <= 0).any()):
        raise UpdateError(f"An update has places of {name!r} twice or out of order.")
    tensor = torch.zeros(size, dtype=values.dtype, device=values.device)
    tensor[indexes] = values
    return tensor.view(shape)


def _place_bytes(chosen: int, size: int) -> int:
    return min(chosen * _INDEX_BYTES, math.ceil(size / 8))


def _bits(indexes: Tensor, size: int) -> Tensor:
    """Eight places a byte, the first in the lowest bit."""
    mask = torch.zeros(math.ceil(size / 8) * 8, dtype=torch.uint8, device=indexes.device)
    mask[indexes] = 1
    return (mask.view(-1, 8) << _shifts(mask)).sum(1, dtype=torch.uint8)


def _set_bits(mask: Tensor) -> Tensor:
    return ((mask[:, None] >> _shifts(mask)) & 1).flatten().nonzero().flatten()


def _shifts(like: Tensor) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=like.device)
