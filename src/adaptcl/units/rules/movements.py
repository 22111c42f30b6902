"""How unit candidates pass through operations that only move elements about.

Most of them run on the candidates themselves, spread out to the shape of the activation: what
happens to the elements happens to their candidates. What comes out must again consist of units
along a single dimension, and must be what the same operation gives on a cut activation. Where
that holds only if units are cut together (two halves of a `chunk`, the groups of a channel
shuffle), they are coupled.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from adaptcl.units.flow import PINNED, Flow, OperationCall, Rule, Tag, tensors_in


def same(flow: Flow, call: OperationCall) -> bool:
    """The elements stay where they are."""
    tag = flow.tag(call.get(0, "input"))
    if tag is None:
        return False
    flow.put(call.out, tag.ids, tag.dim, tag.zero)
    return True


def moved(flow: Flow, call: OperationCall) -> bool:
    """Whole dimensions change places, or are repeated in order."""
    given = call.get(0, "input")
    tag = flow.tag(given)
    if tag is None:
        return False
    full = call.func(_spread(tag, given.shape), *call.args[1:], **call.kwargs)
    return _put_settled(flow, call.out, full, tag.zero, prefer=None)


def reshaped(flow: Flow, call: OperationCall) -> bool:
    """Dimensions are merged or split; the order of the elements stays.

    Splitting channels into (groups, channels of a group) survives a cut if every group loses
    the same channels. Which of the new dimensions gives way cannot be seen from one pass; it is
    taken to be one given as -1, otherwise the second of two and the first of more. The check
    after tracing pins the units where that guess is wrong.
    """
    given = call.get(0, "input")
    tag = flow.tag(given)
    if tag is None or call.out.dtype != given.dtype:
        return False
    full = _spread(tag, given.shape).reshape(call.out.shape)
    return _put_settled(flow, call.out, full, tag.zero, prefer=_open_dimension(call))


def parts(flow: Flow, call: OperationCall) -> bool:
    """A part or several: indexing, `chunk`, `split`, `narrow`, `unbind`.

    Parts along the dimension of the units must be equal and cover it without gap; units at the
    same place in different parts are then coupled, so that the parts stay equal.
    """
    given = call.get(0, "input")
    tag = flow.tag(given)
    if tag is None or len(list(tensors_in((call.args[1:], call.kwargs)))) > 0:
        return False
    results = call.func(_spread(tag, given.shape), *call.args[1:], **call.kwargs)
    for full, out in zip(tensors_in(results), tensors_in(call.out), strict=True):
        varying = _varying(full)
        if len(varying) != 1:
            return False
        ids = _vector(full, varying[0])
        if not torch.equal(ids, tag.ids) and not _couple_parts(flow, tag.ids, ids):
            return False
        flow.put(out, ids, varying[0], tag.zero)
    return True


def rolled(flow: Flow, call: OperationCall) -> bool:
    """A shift by a given number of places must leave the dimension of the units alone."""
    given = call.get(0, "input")
    tag = flow.tag(given)
    if tag is None:
        return False
    full = call.func(_spread(tag, given.shape), *call.args[1:], **call.kwargs)
    if not torch.equal(full, _spread(tag, given.shape)):
        return False
    flow.put(call.out, tag.ids, tag.dim, tag.zero)
    return True


def concatenated(flow: Flow, call: OperationCall) -> bool:
    """Side by side along the units, or end to end along another dimension."""
    given = list(call.get(0, "tensors"))
    dim = call.get(1, "dim", 0) % call.out.dim()
    dims = {tag.dim for t in given if (tag := flow.tag(t)) is not None}
    if len(dims) != 1 or any(flow.is_state(t) for t in given):
        return False
    (unit_dim,) = dims
    zero = all(tag.zero for t in given if (tag := flow.tag(t)) is not None)
    vectors = [_vector_or_pinned(flow, t, unit_dim) for t in given]
    if unit_dim == dim:
        flow.put(call.out, torch.cat(vectors), dim, zero)
    else:
        _couple_all(flow, vectors)
        flow.put(call.out, vectors[0], unit_dim, zero)
    return True


def stacked(flow: Flow, call: OperationCall) -> bool:
    """A new dimension, along which the units repeat."""
    given = list(call.get(0, "tensors"))
    dim = call.get(1, "dim", 0) % call.out.dim()
    tags = [flow.tag(t) for t in given]
    found = [tag for tag in tags if tag is not None]
    if any(flow.is_state(t) for t in given) or len({tag.dim for tag in found}) != 1:
        return False
    unit_dim = found[0].dim
    vectors = [_vector_or_pinned(flow, t, unit_dim) for t in given]
    _couple_all(flow, vectors)
    shifted = unit_dim + 1 if dim <= unit_dim else unit_dim
    flow.put(call.out, vectors[0], shifted, all(tag.zero for tag in found))
    return True


def shuffled(flow: Flow, call: OperationCall) -> bool:
    """`channel_shuffle`: as splitting into groups, exchanging and merging again."""
    tag = flow.tag(call.get(0, "input"))
    groups = call.get(1, "groups")
    if tag is None or tag.dim != 1:
        return False
    split = tag.ids.reshape(groups, -1)
    flow.coupling.couple(split.flatten(), split[:1].expand_as(split).flatten())
    flow.put(call.out, split.t().flatten(), 1, tag.zero)
    return True


def _spread(tag: Tag, shape: torch.Size) -> Tensor:
    """The candidate of every element, as a view of the candidates along one dimension."""
    aligned = [1] * len(shape)
    aligned[tag.dim] = len(tag.ids)
    return tag.ids.reshape(aligned).expand(shape)


def _varying(full: Tensor) -> list[int]:
    """The dimensions along which the candidates are not all the same."""
    return [
        dim
        for dim in range(full.dim())
        if full.shape[dim] > 1
        and full.stride(dim) != 0
        and bool((full.narrow(dim, 1, full.shape[dim] - 1) != full.narrow(dim, 0, 1)).any())
    ]


def _vector(full: Tensor, dim: int) -> Tensor:
    return full.movedim(dim, -1).reshape(-1, full.shape[dim])[0].clone()


def _put_settled(flow: Flow, out: Tensor, full: Tensor, zero: bool, prefer: int | None) -> bool:
    """Tag an activation, coupling units until they lie along a single dimension."""
    varying = _varying(full)
    if not varying:
        return False
    if len(varying) == 1:
        dim = varying[0]
    elif prefer in varying:
        dim = varying[varying.index(prefer)]
    else:
        dim = varying[1] if len(varying) == 2 else varying[0]
    ids = _vector(full, dim)
    if len(varying) > 1:
        table = full.movedim(dim, -1).reshape(-1, len(ids))
        flow.coupling.couple(table.flatten(), ids.expand_as(table).flatten())
    flow.put(out, ids, dim, zero)
    return True


def sizes_asked(call: OperationCall) -> list[int]:
    """The sizes that a `view` or `reshape` is given, one for each dimension; else none."""
    sizes: list[Any] = list(call.args[1:])
    if len(sizes) == 1 and isinstance(sizes[0], tuple | list):
        sizes = list(sizes[0])
    whole = len(sizes) == call.out.dim() and all(isinstance(size, int) for size in sizes)
    return sizes if whole else []


def _open_dimension(call: OperationCall) -> int | None:
    """The place of a -1 among the sizes asked for."""
    sizes = sizes_asked(call)
    return sizes.index(-1) if -1 in sizes else None


def _couple_parts(flow: Flow, whole: Tensor, part: Tensor) -> bool:
    if len(whole) % len(part) != 0:
        return False
    split = whole.reshape(-1, len(part))
    if not bool((split == part).all(dim=1).any()):
        return False
    flow.coupling.couple(split.flatten(), part.expand_as(split).flatten())
    return True


def _couple_all(flow: Flow, vectors: list[Tensor]) -> None:
    for ids in vectors[1:]:
        flow.coupling.couple(vectors[0], ids)


def _vector_or_pinned(flow: Flow, tensor: Tensor, dim: int) -> Tensor:
    tag = flow.tag(tensor)
    return torch.full((tensor.shape[dim],), PINNED) if tag is None else tag.ids


_SAME = "contiguous clone detach data to float double half bfloat16 type_as cpu cuda"
_MOVED = """
    permute transpose t T mT movedim moveaxis swapaxes swapdims adjoint expand expand_as
    broadcast_to repeat repeat_interleave tile flip
"""
_RESHAPED = "reshape reshape_as view view_as flatten unflatten squeeze unsqueeze ravel"
_PARTS = "getitem chunk split narrow select unbind"

MOVEMENT_RULES: dict[str, Rule] = {
    **dict.fromkeys(_SAME.split(), same),
    **dict.fromkeys(_MOVED.split(), moved),
    **dict.fromkeys(_RESHAPED.split(), reshaped),
    **dict.fromkeys(_PARTS.split(), parts),
    **dict.fromkeys(("cat", "concat", "concatenate"), concatenated),
    "roll": rolled,
    "stack": stacked,
    "channel_shuffle": shuffled,
}
