"""The parts in which a frame travels: their shape, and the frame that they make.

Flower sends a message as a tree of objects, each named by the hash of its bytes: a message, in it
a record of records, in it a record of arrays, in it our one array, in it the array's pieces. It
would also take whatever else somebody describes, such as one piece listed a million times, and
make of a few bytes as many as fill the memory. Here nothing is made but the one thing that is
ever sent, and of no more bytes than were expected.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.app.message.arraychunk import ArrayChunk
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import (
    InflatableObject,
    get_object_body,
    get_object_children_ids_from_object_content,
    is_valid_sha256_hash,
)

from adaptcl.engines.flower.frames import RECORD, STYPE
from adaptcl.errors import UpdateError


def parts_of(tree: ObjectTree) -> list[str]:
    """The names of a message's parts, the message's own last."""
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
    """The bytes of the frame in a message; `most` is how many they may be."""
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
    get_object_body(content, kind)  # Raises where it is of another kind.
    (name,) = get_object_children_ids_from_object_content(content)
    return name


def _named_inside(content: bytes, kind: type[InflatableObject]) -> str:
    """The name of the only object inside of a record of this kind."""
    name = _inside(content, kind)
    if json.loads(get_object_body(content, kind)) != {RECORD: name}:
        raise ValueError(name)
    return name
