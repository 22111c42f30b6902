"""One message as bytes: a JSON header and named tensors, in the safetensors format.

Reading a frame never runs code, whoever made it. Every failure to read one is an `UpdateError`. A
frame travels as a single Flower array with a serialisation type of its own. Flower cuts it into
pieces and puts them together again without looking inside.

Flower sends a message as a tree of objects, each named by the hash of its bytes: a message, in it a
record of records, in it a record of arrays, in it our one array, in it the array's pieces. Flower
would also accept any other tree, such as one piece listed a million times, and make of a few bytes
as many as fill the memory. So only this one shape is read here, up to the size that is expected.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.app.message.arraychunk import ArrayChunk
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import (
    InflatableObject,
    get_object_body,
    get_object_children_ids_from_object_content,
    is_valid_sha256_hash,
)
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from adaptcl.codecs.codec import pack_bits, unpack_bits
from adaptcl.errors import UpdateError
from adaptcl.units import Kept, State

STYPE = "adaptcl.frame.1"  # marks our arrays, with the version of this format

RECORD = "frame"  # the name of our one array, and of the record that holds it

LARGEST = 1e30
"""Of numbers that are added, multiplied or averaged: what comes of them must be finite too."""

_HEADER = "header"

_MOST_SHOWN = 500


def printable(text: str) -> str:
    """A text from another machine as it may be shown: it must neither control a terminal nor fill
    it."""
    shown = "".join(c for c in text[: _MOST_SHOWN + 1] if c.isprintable())
    return shown if len(text) <= _MOST_SHOWN else f"{shown[:_MOST_SHOWN]}…"


def is_whole_number(value: object) -> TypeGuard[int]:
    """Whether a value out of JSON is a whole number that any program can hold."""
    return type(value) is int and 0 <= value < 2**53


def is_number(value: object, least: float, most: float) -> TypeGuard[float]:
    """Whether a value out of JSON is a number in this range.

    JSON also has true and false, which Python takes for numbers, whole numbers of any length, and
    NaN, which is in no range.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return least <= value <= most


@dataclass(frozen=True)
class Frame:
    """What one message says."""

    header: dict[str, Any]
    tensors: State

    def to_bytes(self) -> bytes:
        tensors = {name: t.detach().cpu().contiguous() for name, t in self.tensors.items()}
        return save(tensors, metadata={_HEADER: json.dumps(self.header)})

    @classmethod
    def from_bytes(cls, content: bytes) -> Frame:
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
    """A frame's bytes as the content of a Flower message. It travels in pieces of about `piece`
    bytes, no two of them equal, or as Flower cuts it."""
    arrays = ArrayRecord({RECORD: Array("uint8", (len(content),), STYPE, content)})
    if piece is not None:
        # Flower cuts all arrays of a process in the same way, except those that are cut already.
        arrays[RECORD].__dict__["_chunks"] = list(_cut(memoryview(content), piece).items())
    return RecordDict({RECORD: arrays})


def _cut(content: memoryview, piece: int) -> dict[str, ArrayChunk]:
    """Pieces by name; from where one would equal another, they are smaller.

    A layer that is all zeros has equal pieces. Flower would send one of them and how often it
    occurs, and the receiver could not know how much is still to come.
    """
    pieces: dict[str, ArrayChunk] = {}
    at = 0
    while at < len(content):
        chunk = ArrayChunk(content[at : at + piece])
        if chunk.object_id in pieces:
            piece = len(chunk.data) - 1  # All earlier ones are longer, so it equals none of them.
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
    return pack_bits(kept.cpu())


def unpack_kept(bits: Tensor, count: int) -> Kept:
    """Kept units from their bits; `count` is how many units the model has."""
    if bits.dtype != torch.uint8 or tuple(bits.shape) != (-(-count // 8),):
        raise UpdateError(f"A message has kept units that are not those of {count} units.")
    return unpack_bits(bits)[:count]


def parts_of(tree: ObjectTree) -> list[str]:
    """The names of a message's parts; the message's name comes last."""
    names = [tree.object_id]
    for _ in (RecordDict, ArrayRecord, Array):
        if len(tree.children) != 1:
            raise UpdateError("A message does not consist of one array.")
        tree = tree.children[0]
        names.append(tree.object_id)
    for piece in tree.children:
        if piece.children:
            raise UpdateError("A message has pieces that are in pieces themselves.")
        names.append(piece.object_id)
    if len(set(names)) < len(names):
        raise UpdateError("A message has a part twice.")
    if not all(map(is_valid_sha256_hash, names)):
        raise UpdateError("A message has parts whose names are not made from what is in them.")
    return names[::-1]


def tree_of(parts: Sequence[str]) -> ObjectTree:
    """The tree of which these are the parts."""
    *pieces, array, arrays, records, message = parts
    tree = ObjectTree(object_id=array, children=[ObjectTree(object_id=p) for p in pieces[::-1]])
    for name in (arrays, records, message):
        tree = ObjectTree(object_id=name, children=[tree])
    return tree


def frame_of(message: str, parts: Mapping[str, bytes], most: int) -> bytes:
    """The frame in a message, of at most so many bytes."""
    try:
        records = _inside(parts[message], Message)
        arrays = _named_inside(parts[records], RecordDict)
        array = parts[_named_inside(parts[arrays], ArrayRecord)]
        said = json.loads(get_object_body(array, Array))
        names = get_object_children_ids_from_object_content(array)
        if said["stype"] != STYPE:
            raise UpdateError(f"A message is not in the format {STYPE}; do the versions differ?")
        if len(set(names)) < len(names) or said["arraychunk_ids"] != list(range(len(names))):
            raise UpdateError("A message has a piece twice, or not in its place.")
        if sum(len(parts[name]) for name in names) > most:
            raise UpdateError(f"A message has more than the {most} bytes that it may have.")
        return b"".join(get_object_body(parts[name], ArrayChunk) for name in names)
    except (LookupError, TypeError, ValueError, RecursionError):
        raise UpdateError("A message cannot be put together from its parts.") from None


def _inside(content: bytes, kind: type[InflatableObject]) -> str:
    """The name of the only object inside of one of this kind."""
    get_object_body(content, kind)  # raises if it is of another kind
    (name,) = get_object_children_ids_from_object_content(content)
    return name


def _named_inside(content: bytes, kind: type[InflatableObject]) -> str:
    """The name of the only object inside of a record of this kind."""
    name = _inside(content, kind)
    if json.loads(get_object_body(content, kind)) != {RECORD: name}:
        raise ValueError(name)
    return name
