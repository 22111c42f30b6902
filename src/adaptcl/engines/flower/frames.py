"""One message as bytes: a JSON header and named tensors, in the safetensors format.

Reading a frame never runs code, whoever made it, and every failure to read one is an
`UpdateError`. The frame travels as a single Flower array of its own serialisation type, which
Flower cuts into pieces and puts together again without looking inside.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, RecordDict
from flwr.app.message.arraychunk import ArrayChunk
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from adaptcl.engines.flower.printable import printable
from adaptcl.errors import UpdateError
from adaptcl.units import Kept, State

STYPE = "adaptcl.frame.1"
"""Marks our arrays, and which version of this format they hold."""

RECORD = "frame"
"""What the record of our one array and the array in it are called."""

_HEADER = "header"


@dataclass(frozen=True)
class Frame:
    """What one message says."""

    header: dict[str, Any]
    tensors: State

    def to_bytes(self) -> bytes:
        """The frame as it travels."""
        tensors = {name: t.detach().cpu().contiguous() for name, t in self.tensors.items()}
        return save(tensors, metadata={_HEADER: json.dumps(self.header)})

    @classmethod
    def from_bytes(cls, content: bytes) -> Frame:
        """Read what somebody sent."""
        try:
            tensors = load(content)
            length = int.from_bytes(content[:8], "little")
            metadata = json.loads(content[8 : 8 + length])["__metadata__"]
            header = json.loads(metadata[_HEADER])
        except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise UpdateError(f"A message cannot be read: {printable(str(error))}.") from None
        if not isinstance(header, dict):
            raise UpdateError("A message cannot be read: its header is not an object.")
        return cls(header, tensors)


def to_record(content: bytes, piece: int | None = None) -> RecordDict:
    """A frame's bytes as the content of a Flower message, which travels in pieces of about so many
    bytes, no two of them equal; as Flower likes, if none are given."""
    arrays = ArrayRecord({RECORD: Array("uint8", (len(content),), STYPE, content)})
    if piece is not None:
        # Flower cuts all arrays of a process alike, except those that it finds cut already.
        arrays[RECORD].__dict__["_chunks"] = list(_cut(memoryview(content), piece).items())
    return RecordDict({RECORD: arrays})


def _cut(content: memoryview, piece: int) -> dict[str, ArrayChunk]:
    """Pieces of so many bytes by their names, and of fewer from where one equals another.

    A layer that is all zeros has equal pieces. Flower would send one of them and say how often,
    and whoever is sent that has no means to know how much is to come.
    """
    pieces: dict[str, ArrayChunk] = {}
    at = 0
    while at < len(content):
        chunk = ArrayChunk(content[at : at + piece])
        if chunk.object_id in pieces:
            piece = len(chunk.data) - 1  # All so far are longer, so that it equals none of them.
            if piece < 1:
                raise UpdateError("A message is too large for pieces as small as these.")
            continue
        pieces[chunk.object_id] = chunk
        at += len(chunk.data)
    return pieces


def from_record(record: RecordDict) -> bytes:
    """The frame's bytes in the content of a Flower message."""
    arrays = record.get(RECORD)
    array = arrays.get(RECORD) if isinstance(arrays, ArrayRecord) else None
    if array is None or array.stype != STYPE:
        raise UpdateError(f"A message is not in the format {STYPE}; do the versions differ?")
    return array.data


def pack_kept(kept: Kept) -> Tensor:
    """Kept units as bits, eight in a byte."""
    padded = torch.zeros(-(-len(kept) // 8) * 8, dtype=torch.uint8)
    padded[: len(kept)] = kept.cpu()
    return (padded.view(-1, 8) << torch.arange(8, dtype=torch.uint8)).sum(1, dtype=torch.uint8)


def unpack_kept(bits: Tensor, count: int) -> Kept:
    """Kept units from their bits; `count` is how many units the model has."""
    if bits.dtype != torch.uint8 or tuple(bits.shape) != (-(-count // 8),):
        raise UpdateError(f"A message has kept units that are not those of {count} units.")
    each = (bits.unsqueeze(1) >> torch.arange(8, dtype=torch.uint8)) & 1
    return each.reshape(-1)[:count].bool()
