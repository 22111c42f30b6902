"""Rules for movements: operations that only move elements.

Most rules run the operation on the candidates themselves, expanded to the shape of the activation:
what happens to the elements happens to their candidates. The result must again consist of units
along a single dimension, and must be what the operation gives for a cut activation. If that holds
only when units are cut together (the two halves of a `chunk`, the groups of a channel shuffle),
they are coupled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from adaptcl.units.tensors import tensors_in
from adaptcl.units.tracing.coupling import PINNED
from adaptcl.units.tracing.flow import Flow, OpenTag, OperationCall, Rule, Tag
from adaptcl.units.tracing.rules.choices import Choice


def same(flow: Flow, call: OperationCall) -> bool:
    """The elements stay where they are."""
    operand = call.get(0, "input")
    tag = flow.tag(operand)
    if tag is None:
        return _alias(flow, call, range(operand.dim()))
    flow.put(call.out, tag.ids, tag.dim, tag.zero)
    return True


def moved(flow: Flow, call: OperationCall) -> bool:
    """Whole dimensions are permuted or repeated."""
    operand = call.get(0, "input")
    tag = flow.tag(operand)
    if tag is None:
        return _alias(flow, call, _permutation(operand, call.out))
    full = call.func(_spread(tag, operand.shape), *call.args[1:], **call.kwargs)
    return _put_settled(flow, call.out, full, tag.zero, prefer=None)


def reshaped(flow: Flow, call: OperationCall) -> bool:
    """Dimensions are merged or split; the order of the elements stays.

    Splitting channels into (groups, channels of a group) survives a cut if every group loses the
    same channels. Which of the new dimensions shrinks cannot be seen in one pass. The guess is the
    one given as -1, or else the second of two and the first of more. If it is wrong, the check
    after tracing pins the units.
    """
    operand = call.get(0, "input")
    tag = flow.tag(operand)
    if tag is None or call.out.dtype != operand.dtype:
        return False
    full = _spread(tag, operand.shape).reshape(call.out.shape)
    return _put_settled(flow, call.out, full, tag.zero, prefer=_open_dimension(call))


def split(flow: Flow, call: OperationCall) -> bool:
    """Indexing, `chunk`, `split`, `narrow`, `unbind` and `index_select`.

    Pieces along the dimension of the units must be equally large and cover it without a gap. Units
    at the same position in different pieces are coupled, so that the pieces stay equally large.
    A tensor of indexes must leave that dimension alone.
    """
    operand = call.get(0, "input")
    tag, indexes = flow.tag(operand), list(tensors_in((call.args[1:], call.kwargs)))
    if tag is None or any(flow.tag(each) is not None for each in indexes):
        return False
    results = call.func(_spread(tag, operand.shape), *call.args[1:], **call.kwargs)
    for full, out in zip(tensors_in(results), call.outputs, strict=True):
        varying = _varying(full)
        if len(varying) != 1:
            return False
        ids = _vector(full, varying[0])
        whole = torch.equal(ids, tag.ids)
        if not whole and (indexes or not _couple_pieces(flow, tag.ids, ids)):
            return False
        flow.put(out, ids, varying[0], tag.zero)
    return True


def rolled(flow: Flow, call: OperationCall) -> bool:
    """A shift by a fixed number must leave the dimension of the units alone."""
    operand = call.get(0, "input")
    tag = flow.tag(operand)
    if tag is None:
        return False
    full = call.func(_spread(tag, operand.shape), *call.args[1:], **call.kwargs)
    if not torch.equal(full, _spread(tag, operand.shape)):
        return False
    flow.put(call.out, tag.ids, tag.dim, tag.zero)
    return True


def concatenated(flow: Flow, call: OperationCall) -> bool:
    """Concatenation along the units, or along another dimension."""
    # An empty vector, such as the cache of a decoder begins with, adds nothing.
    operands = [each for each in call.get(0, "tensors") if each.shape != (0,)]
    dim = call.get(1, "dim", 0) % call.out.dim()
    dims = {tag.dim for each in operands if (tag := flow.tag(each)) is not None}
    if len(dims) != 1 or any(flow.is_state(each) and flow.tag(each) is None for each in operands):
        return False
    (unit_dim,) = dims
    zero = all(tag.zero for each in operands if (tag := flow.tag(each)) is not None)
    vectors = [_vector_or_pinned(flow, each, unit_dim) for each in operands]
    if unit_dim == dim:
        flow.put(call.out, torch.cat(vectors), dim, zero)
    else:
        _couple_all(flow, vectors)
        flow.put(call.out, vectors[0], unit_dim, zero)
    return True


def stacked(flow: Flow, call: OperationCall) -> bool:
    """A new dimension, along which the units repeat."""
    operands = list(call.get(0, "tensors"))
    dim = call.get(1, "dim", 0) % call.out.dim()
    tags = [flow.tag(each) for each in operands]
    found = [tag for tag in tags if tag is not None]
    state = any(flow.is_state(each) and flow.tag(each) is None for each in operands)
    if state or len({tag.dim for tag in found}) != 1:
        return False
    unit_dim = found[0].dim
    vectors = [_vector_or_pinned(flow, each, unit_dim) for each in operands]
    _couple_all(flow, vectors)
    shifted = unit_dim + 1 if dim <= unit_dim else unit_dim
    flow.put(call.out, vectors[0], shifted, all(tag.zero for tag in found))
    return True


def shuffled(flow: Flow, call: OperationCall) -> bool:
    """`channel_shuffle`: channels are split into groups, transposed and merged."""
    tag = flow.tag(call.get(0, "input"))
    groups = call.get(1, "groups")
    if tag is None or tag.dim != 1:
        return False
    by_group = tag.ids.reshape(groups, -1)
    flow.coupling.couple(by_group.flatten(), by_group[:1].expand_as(by_group).flatten())
    flow.put(call.out, by_group.t().flatten(), 1, tag.zero)
    return True


def _alias(flow: Flow, call: OperationCall, dims: Sequence[int]) -> bool:
    """A parameter in another form, such as the transposed weight in `x @ weight.t()`."""
    operand = call.get(0, "input")
    if not flow.is_parameter(operand) or len(dims) != call.out.dim():
        return False
    flow.view(call.out, operand, dims)
    return True


def _permutation(operand: Tensor, out: Tensor) -> list[int]:
    """For each dimension of a view the dimension of its operand; empty if that is not clear."""
    strides = operand.stride()
    clear = len(set(strides)) == len(strides) and sorted(out.stride()) == sorted(strides)
    return [strides.index(stride) for stride in out.stride()] if clear else []


def _spread(tag: Tag, shape: torch.Size) -> Tensor:
    """The candidate of every element of an activation, as a view."""
    aligned = [1] * len(shape)
    aligned[tag.dim] = len(tag.ids)
    return tag.ids.reshape(aligned).expand(shape)


def _varying(full: Tensor) -> list[int]:
    """The dimensions along which the candidates differ."""
    full = _without_repeats(full)
    return [
        dim
        for dim in range(full.dim())
        if full.shape[dim] > 1
        and bool((full.narrow(dim, 1, full.shape[dim] - 1) != full.narrow(dim, 0, 1)).any())
    ]


def _without_repeats(full: Tensor) -> Tensor:
    """One index of every dimension that merely repeats the others."""
    for dim in range(full.dim()):
        if full.stride(dim) == 0:
            full = full.narrow(dim, 0, 1)
    return full


def _vector(full: Tensor, dim: int) -> Tensor:
    return full.movedim(dim, -1).reshape(-1, full.shape[dim])[0].clone()


def _put_settled(flow: Flow, out: Tensor, full: Tensor, zero: bool, prefer: int | None) -> bool:
    """Tag an activation whose units must end up along a single dimension.

    If they vary along several, those along the others are coupled; which one is left to a choice.
    """
    varying = _varying(full)
    if not varying:
        return False
    tags = [Tag(_vector(full, dim), dim, zero) for dim in varying]
    if len(varying) == 1:
        flow.put(out, tags[0].ids, tags[0].dim, zero)
        return True
    usual = varying.index(prefer) if prefer in varying else int(len(varying) == 2)

    def couple(tag: Tag) -> None:
        table = _without_repeats(full).movedim(tag.dim, -1).reshape(-1, len(tag.ids))
        flow.coupling.couple(table.flatten(), tag.ids.expand_as(table).flatten())

    choice = Choice(out, tags, usual, couple, flow.coupling.place)
    flow.open(out, OpenTag(choice, dict(enumerate(tags))))
    return True


def sizes_asked(call: OperationCall) -> list[int]:
    """The sizes passed to a `view` or `reshape`, if there is one for each dimension."""
    sizes: list[Any] = list(call.args[1:])
    if len(sizes) == 1 and isinstance(sizes[0], tuple | list):
        sizes = list(sizes[0])
    whole = len(sizes) == call.out.dim() and all(isinstance(size, int) for size in sizes)
    return sizes if whole else []


def _open_dimension(call: OperationCall) -> int | None:
    """The dimension of a -1 among the sizes."""
    sizes = sizes_asked(call)
    return sizes.index(-1) if -1 in sizes else None


def _couple_pieces(flow: Flow, whole: Tensor, piece: Tensor) -> bool:
    if len(whole) % len(piece) != 0:
        return False
    pieces = whole.reshape(-1, len(piece))
    if not bool((pieces == piece).all(dim=1).any()):
        return False
    flow.coupling.couple(pieces.flatten(), piece.expand_as(pieces).flatten())
    return True


def _couple_all(flow: Flow, vectors: list[Tensor]) -> None:
    for ids in vectors[1:]:
        flow.coupling.couple(vectors[0], ids)


def _vector_or_pinned(flow: Flow, tensor: Tensor, dim: int) -> Tensor:
    tag = flow.tag(tensor)
    if tag is None:
        return torch.full((tensor.shape[dim],), PINNED)
    return tag.ids


def filled_like(flow: Flow, call: OperationCall) -> bool:
    """`expand_as`: what is the same for all units of the other tensor is cut with it."""
    operand, like = call.get(0, "input"), call.get(1, "other")
    tag = flow.tag(like)
    if flow.tag(operand) is not None or tag is None:
        return moved(flow, call)
    at = tag.dim - call.out.dim() + operand.dim()
    if at >= 0 and operand.shape[at] > 1:
        return False
    flow.put(call.out, tag.ids, tag.dim, zero=False)
    return True


def scattered(flow: Flow, call: OperationCall) -> bool:
    """`zeros.scatter_add(0, index, x)` reduces rows; the dimension of the units is another."""
    target, index, source = call.get(0, "input"), call.get(2, "index"), call.get(3, "src")
    tag, dim = flow.tag(source), call.get(1, "dim") % source.dim()
    if tag is None or tag.dim == dim:
        return False
    zero = tag.zero
    for each in (target, index):
        if (found := flow.tag(each)) is not None:
            flow.coupling.couple(found.ids, tag.ids)
            zero = zero and (each is index or found.zero)
    if flow.tag(target) is None and not flow.is_zeros(target, writes=int(call.out is target)):
        return False
    flow.put(call.out, tag.ids, tag.dim, zero)
    return True


_SAME = "contiguous clone detach data to float double half bfloat16 type type_as cpu cuda"
_PERMUTED = "permute transpose t T mT movedim moveaxis swapaxes swapdims adjoint"
_REPEATED = "expand broadcast_to repeat repeat_interleave tile flip"
_RESHAPED = "reshape reshape_as view view_as flatten unflatten squeeze unsqueeze ravel"
_SPLIT = "getitem chunk split narrow select unbind index_select"

ALIASES = frozenset([*_SAME.split(), *_PERMUTED.split()])
"""Operations that give the same parameter in another form."""

MOVEMENT_RULES: dict[str, Rule] = {
    **dict.fromkeys(_SAME.split(), same),
    **dict.fromkeys([*_PERMUTED.split(), *_REPEATED.split()], moved),
    "expand_as": filled_like,
    **dict.fromkeys(_RESHAPED.split(), reshaped),
    **dict.fromkeys(_SPLIT.split(), split),
    **dict.fromkeys(("cat", "concat", "concatenate"), concatenated),
    "roll": rolled,
    **dict.fromkeys(("scatter_add", "scatter_reduce"), scattered),
    "stack": stacked,
    "channel_shuffle": shuffled,
}
