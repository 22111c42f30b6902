"""Rules for values: operations that compute new values without weights.

Cutting a unit equals zeroing it only if a zeroed unit has a zero activation. A ReLU preserves that,
a sigmoid does not, and a product has it if one factor has it. No list says which functions have
this property: each operation is run on zeros to find out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from itertools import product

import torch
from torch import Tensor

from adaptcl.units.tensors import tensors_in
from adaptcl.units.tracing.flow import Flow, OperationCall, Rule, Tag

_ANYTHING = (2.0, -1.0)
"""Test values, one of either sign, for an operand that may be anything."""
_EITHER = (1.0, 0.0)
"""Test values for a mask, which the example may not use both ways."""


def pointwise(flow: Flow, call: OperationCall) -> bool:
    """A function of each element, or of the elements at the same position of several operands.

    Operands of full width are cut together, also zeros that the forward pass makes, and parameters
    and buffers, which the units own. An operand that is broadcast along the units is never cut and
    does not pin them.
    """
    out: Tensor = call.out
    operands = call.operands
    tags = [flow.tag(each) for each in operands]
    dims = _unit_dims(out, operands, tags)
    if len(dims) > 1:
        tags = [flow.live_tag(each) for each in operands]
        dims = _unit_dims(out, operands, tags)
    if len(dims) != 1:
        return False
    (dim,) = dims
    ids = next(tag.ids for tag in tags if tag is not None)
    zero: dict[int, bool] = {}
    for tensor, tag in zip(operands, tags, strict=True):
        operand_dim = dim - out.dim() + tensor.dim()
        if operand_dim < 0 or tensor.shape[operand_dim] == 1:
            if flow.is_state(tensor):
                flow.pin(tensor)
            zero[id(tensor)] = False
        elif tag is not None:
            flow.coupling.couple(ids, tag.ids)
            zero[id(tensor)] = tag.zero
        elif flow.is_state(tensor) and tensor.is_floating_point():
            flow.own(tensor, operand_dim, ids)
            zero[id(tensor)] = True
        elif flow.is_zeros(tensor):
            flow.put(tensor, ids, operand_dim, zero=True)
            zero[id(tensor)] = True
        else:
            flow.pin(tensor)
            flow.coupling.couple(ids, torch.full_like(ids, flow.pinned_by(tensor)))
            zero[id(tensor)] = False
    flow.put(out, ids, dim, _gives_zero(call, zero))
    return True


def _unit_dims(out: Tensor, operands: Sequence[Tensor], tags: Sequence[Tag | None]) -> set[int]:
    """The dimensions of the result along which operands consist of units."""
    return {
        tag.dim - each.dim() + out.dim()
        for each, tag in zip(operands, tags, strict=True)
        if tag is not None
    }


def _gives_zero(call: OperationCall, zero: dict[int, bool]) -> bool:
    """Whether the result is zero where these operands are zero, whatever the others are."""
    masks = {id(each) for each in call.operands if each.dtype == torch.bool}
    free = [key for key, is_zero in zero.items() if not is_zero]
    for values in product(*(_EITHER if key in masks else _ANYTHING for key in free)):
        chosen = dict(zip(free, values, strict=True))
        if not bool((call.replay(partial(_filled, chosen)) == 0).all()):
            return False
    return True


def _filled(chosen: dict[int, float], tensor: Tensor) -> Tensor:
    """One element with the value chosen for a tensor, or zero."""
    return torch.full([1] * tensor.dim(), chosen.get(id(tensor), 0.0)).to(tensor.dtype)


def gated(flow: Flow, call: OperationCall) -> bool:
    """`glu`: one half of the units opens the other, so both halves are cut alike."""
    operand = call.get(0, "input")
    tag = flow.tag(operand)
    if tag is None:
        return False
    ids = tag.ids
    if tag.dim == call.get(1, "dim", -1) % operand.dim():
        ids, gates = ids.chunk(2)
        flow.coupling.couple(ids, gates)
    flow.put(call.out, ids, tag.dim, tag.zero)
    return True


def reduced(flow: Flow, call: OperationCall) -> bool:
    """Mean, sum, maximum, softmax and the like over dimensions other than that of the units.

    A sum or a norm over the units is an exception: adding zero equals adding nothing. So is a mean
    in which those cut still count.
    """
    operand = call.get(0, "input")
    other = call.get(2 if call.name in _NORMS else 1, "dim")
    if isinstance(other, Tensor):
        return pointwise(flow, call)
    tag = flow.tag(operand)
    if tag is None:
        return False
    over = range(operand.dim()) if other is None else [other] if isinstance(other, int) else other
    dims = {dim % operand.dim() for dim in over}
    if tag.dim in dims:
        if call.name == "mean" and len(dims) == 1:
            return flow.average(operand)
        return tag.zero and (call.name == "sum" or call.name in _NORMS)
    return _put_outputs(flow, call, operand, sum(dim < tag.dim for dim in dims))


def spatial(flow: Flow, call: OperationCall) -> bool:
    """Pooling, padding and resizing of the dimensions behind that of the units."""
    operand = call.get(0, "input")
    tag = flow.tag(operand)
    if tag is None or tag.dim >= operand.dim() - _trailing(call, operand):
        return False
    return _put_outputs(flow, call, operand, 0)


def _trailing(call: OperationCall, operand: Tensor) -> int:
    """How many of the last dimensions the operation changes."""
    if call.name == "pad":
        pads = call.get(1, "pad")
        return max((i // 2 + 1 for i, size in enumerate(pads) if size != 0), default=0)
    if (found := re.search(r"([123])d", call.name)) is not None:
        return int(found[1])
    return operand.dim() - 2


def _put_outputs(flow: Flow, call: OperationCall, operand: Tensor, lost: int) -> bool:
    """Tag each output; `lost` dimensions before that of the units may be gone."""
    tag = flow.tag(operand)
    assert tag is not None
    on_zero = call.replay(lambda each: torch.zeros_like(each) if each is operand else each)
    for out, result in zip(call.outputs, tensors_in(on_zero), strict=True):
        dim = tag.dim if out.dim() == operand.dim() else tag.dim - lost
        flow.put(out, tag.ids, dim, tag.zero and bool((result == 0).all()))
    return True


# Not alpha dropout: in training it gives a number where it is given zero.
_POINTWISE = """
    abs add addcdiv addcmul atan ceil celu clamp clamp_max clamp_min clip cos div dropout
    dropout1d dropout2d dropout3d elu eq erf exp expm1 feature_dropout fill floor full_like ge
    gelu gt hardshrink hardsigmoid hardswish hardtanh le leaky_relu lerp log log1p logical_and
    logical_not logical_or logsigmoid lt masked_fill maximum minimum mish mul nan_to_num ne neg
    ones_like pow reciprocal relu relu6 round rrelu rsqrt rsub selu sigmoid sign silu sin
    softplus softshrink softsign sqrt square sub tan tanh tanhshrink threshold where zeros_like
"""
_REDUCED = """
    amax amin argmax argmin cumsum log_softmax logsumexp max mean min norm prod softmax softmin std
    sum var vector_norm
"""
_NORMS = frozenset({"norm", "vector_norm"})
_POOLS = "max avg adaptive_avg adaptive_max lp"

VALUE_RULES: dict[str, Rule] = {
    **dict.fromkeys(_POINTWISE.split(), pointwise),
    "glu": gated,
    **dict.fromkeys(_REDUCED.split(), reduced),
    **{f"{kind}_pool{n}d": spatial for kind in _POOLS.split() for n in (1, 2, 3)},
    **{f"{k}_pool{n}d_with_indices": spatial for k in ("max", "adaptive_max") for n in (1, 2, 3)},
    **dict.fromkeys(["pad", "interpolate", "upsample"], spatial),
}
