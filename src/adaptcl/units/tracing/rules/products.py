"""Rules for products: `matmul`, `addmm`, `einsum` and attention.

All of them multiply two tensors and sum over some dimensions. Each dimension gets a label, as in
`einsum`: a label that the result lacks is summed over, one that both factors share runs through
both. So one rule serves a bare weight (a layer without `nn.Linear`) and two activations: the scores
of attention, and what they do to the values.

In attention the units are heads. Queries, keys and values of a head have the label of a batch
dimension, which is where the products couple them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from adaptcl.units.tracing.flow import Flow, OperationCall, Rule, Tag
from adaptcl.units.tracing.rules.choices import enter
from adaptcl.units.tracing.rules.layers import read
from adaptcl.units.tracing.rules.values import pointwise


@dataclass(frozen=True)
class _Factor:
    """One of the tensors that are multiplied."""

    tensor: Tensor
    labels: list[str]
    """One for each dimension."""
    tag: Tag | None

    def dim(self, label: str) -> int | None:
        """The dimension with this label, unless it is broadcast."""
        dim = self.labels.index(label) if label in self.labels else None
        return None if dim is None or self.tensor.shape[dim] == 1 else dim

    @property
    def label(self) -> str | None:
        """The label of the dimension of the units."""
        return None if self.tag is None else self.labels[self.tag.dim]


def matmul(flow: Flow, call: OperationCall) -> bool:
    """`x @ w`, `w @ x` and products of activations, with any number of batch dimensions."""
    first, second = call.get(0, "input"), call.get(1, "other", call.kwargs.get("mat2"))
    if call.name == "rmatmul":
        first, second = second, first
    return _multiplied(flow, call.out, first, second)


def added_product(flow: Flow, call: OperationCall) -> bool:
    """`addmm(bias, x, weight)`, which is a linear layer, and `baddbmm(mask, queries, keys)`."""
    added, first, second = call.args
    if not _multiplied(flow, call.out, first, second):
        return False
    if call.kwargs.get("beta", 1) == 0:
        return not flow.concerns(added)
    if flow.tag(call.out) is None:
        flow.pin(added)
        return True
    enter(flow, added)
    return pointwise(
        flow, OperationCall("add", call.place, torch.add, (call.out, added), {}, call.out)
    )


def einsum(flow: Flow, call: OperationCall) -> bool:
    """An equation such as `bnd,dhk->bnhk`, with two operands and explicit labels."""
    equation, *operands = call.args
    if len(operands) == 1 and isinstance(operands[0], tuple | list):
        operands = list(operands[0])
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    if not arrow or "..." in equation or len(operands) != 2 or len(terms) != 2:
        return False
    if any(len(set(term)) != len(term) for term in terms):
        return False
    factors = [_factor(flow, *each) for each in zip(operands, map(list, terms), strict=True)]
    return _contracted(flow, factors, call.out, list(output))


def attention(flow: Flow, call: OperationCall) -> bool:
    """`scaled_dot_product_attention`: units are heads, or what the values hold at the end."""
    query, key, value = (call.get(at, name) for at, name in enumerate(("query", "key", "value")))
    mask, scale = call.get(3, "attn_mask"), call.kwargs.get("scale")
    factors = [
        _factor(flow, query, [*_batch_labels(query), "query", "size"]),
        _factor(flow, key, [*_batch_labels(key), "key", "size"]),
        _factor(flow, value, [*_batch_labels(value), "key", "value"]),
    ]
    if call.kwargs.get("enable_gqa", False):
        factors = [_repeated(each, query.shape[-3]) for each in factors]
    if mask is not None:
        factors.append(_factor(flow, mask, [*_batch_labels(mask), "query", "key"]))
    labels = {each.label for each in factors if each.label is not None}
    if len(labels) != 1 or labels & {"query", "key"} or (labels == {"size"} and scale is None):
        return False
    if any(flow.is_state(each.tensor) for each in factors):
        return False
    tag = factors[2].tag
    if not _activations(flow, factors, call.out, [*_batch_labels(call.out), "query", "value"]):
        return False
    # The scores of a head that is zero are all the same; only its values make the result zero.
    if (found := flow.tag(call.out)) is not None:
        flow.put(call.out, found.ids, found.dim, zero=tag is not None and tag.zero)
    return True


def multi_head_attention(flow: Flow, call: OperationCall) -> bool:
    """All of `nn.MultiheadAttention` in one operation; the heads own its input projections."""
    inputs = [call.get(at, name) for at, name in enumerate(("query", "key", "value"))]
    packed, packed_bias = call.get(5, "in_proj_weight"), call.get(6, "in_proj_bias")
    output, bias = call.get(11, "out_proj_weight"), call.get(12, "out_proj_bias")
    mask, heads, width = call.get(16, "attn_mask"), call.get(4, "num_heads"), inputs[0].shape[-1]
    weights = [packed] if packed is not None else [
        call.get(at, f"{name}_proj_weight") for at, name in enumerate("qkv", start=18)
    ]  # fmt: skip
    used = inputs[0].numel() // width
    for weight in (*weights, output):
        if flow.is_parameter(weight):
            flow.count_work(weight, used)
    entries = [packed_bias, call.get(7, "bias_k"), call.get(8, "bias_v"), bias]
    given = [each for each in (*weights, output, *entries) if each is not None]
    per_head_mask = mask is not None and mask.dim() == 3
    static = call.get(21, "static_k") is not None or call.get(22, "static_v") is not None
    if static or per_head_mask or not all(map(flow.is_parameter, given)):
        return False
    for weight, activation in zip(weights * (3 // len(weights)), inputs, strict=True):
        if not read(flow, activation, activation.dim() - 1, weight, 1):
            return False
    ids = flow.rows(weights[0], 0)
    of_head = ids.reshape(-1, heads, width // heads)
    flow.coupling.couple(ids, of_head[:1, :, :1].expand_as(of_head).flatten())
    inner = ids[:width]
    for weight in weights[1:]:
        flow.claim(weight, 0, inner, owned=True)
    for entry in entries[:-1]:
        if entry is not None:
            owners = inner.repeat(entry.shape[-1] // width)
            flow.claim(entry, entry.dim() - 1, owners, owned=True)
    flow.claim(output, 1, inner, owned=False)
    flow.heads.append(inner)
    result, scores = call.out
    if scores is not None:
        flow.mixed[scores] = inner
    rows = flow.rows(output, 0)
    if bias is not None:
        flow.claim(bias, 0, rows, owned=True)
    flow.put(result, rows, result.dim() - 1, zero=True)
    return True


def _multiplied(flow: Flow, out: Tensor, first: Tensor, second: Tensor) -> bool:
    inner = ["inner"] if first.dim() == 1 else ["row", "inner"]
    outer = ["inner"] if second.dim() == 1 else ["inner", "column"]
    factors = [
        _factor(flow, first, [*_batch_labels(first, len(inner)), *inner]),
        _factor(flow, second, [*_batch_labels(second, len(outer)), *outer]),
    ]
    ends = [*inner[:-1], *outer[1:]]
    return _contracted(flow, factors, out, [*_batch_labels(out, len(ends)), *ends])


def _batch_labels(tensor: Tensor, others: int = 2) -> list[str]:
    """Labels of the dimensions before the last ones; they are aligned at their end."""
    return [str(at) for at in range(others - tensor.dim(), 0)]


def _factor(flow: Flow, tensor: Tensor, labels: list[str]) -> _Factor:
    if len(labels) != tensor.dim():
        raise ValueError("one label for each dimension")
    return _Factor(tensor, labels, flow.live_tag(tensor))


def _repeated(factor: _Factor, heads: int) -> _Factor:
    """Keys or values of grouped-query attention, as if each group of queries had its copy."""
    tag, at = factor.tag, factor.tensor.dim() - 3
    have = factor.tensor.shape[at]
    if tag is None or tag.dim != at or have == heads:
        return factor
    ids = tag.ids.repeat_interleave(heads // have)
    return _Factor(factor.tensor, factor.labels, Tag(ids, tag.dim, tag.zero))


def _contracted(flow: Flow, factors: Sequence[_Factor], out: Tensor, out_labels: list[str]) -> bool:
    """Multiply two factors, one of which may be a parameter."""
    weights = [each for each in factors if flow.is_parameter(each.tensor)]
    others = [each for each in factors if not flow.is_parameter(each.tensor)]
    if not weights:
        return _activations(flow, factors, out, out_labels)
    if len(weights) != 1 or flow.is_state(others[0].tensor):
        return False
    _weighted(flow, others[0], weights[0], out, out_labels)
    return True


def _weighted(
    flow: Flow, activation: _Factor, weight: _Factor, out: Tensor, out_labels: list[str]
) -> None:
    """A weight reads the units along a label that is summed, and creates units along a new one."""
    created = [label for label in weight.labels if label not in activation.labels]
    used = [size for size, label in zip(out.shape, out_labels, strict=True) if label not in created]
    flow.count_work(weight.tensor, int(torch.Size(used).numel()))
    tag, follows = activation.tag, activation.label in out_labels
    for dim, label in enumerate(weight.labels):
        if label == activation.label and tag is not None and weight.tensor.shape[dim] > 1:
            if follows:
                flow.claim(weight.tensor, dim, tag.ids, owned=True)
            else:
                flow.read(weight.tensor, dim, tag)
        elif label in created[:1] and not follows:
            rows = flow.rows(weight.tensor, dim)
            flow.put(out, rows, out_labels.index(label), zero=True)
        else:
            flow.fix(weight.tensor, dim)
    if follows and tag is not None and activation.label is not None:
        owned = weight.dim(activation.label) is not None
        flow.put(out, tag.ids, out_labels.index(activation.label), tag.zero or owned)


def _activations(
    flow: Flow, factors: Sequence[_Factor], out: Tensor, out_labels: list[str]
) -> bool:
    """Products of activations couple the units along a shared label."""
    labels = {each.label for each in factors if each.label is not None}
    if len(labels) != 1:
        return not labels
    (label,) = labels
    assert label is not None
    wide = [each for each in factors if each.dim(label) is not None]
    ids = next(each.tag.ids for each in wide if each.tag is not None)
    for each in wide:
        if each.tag is not None:
            flow.coupling.couple(ids, each.tag.ids)
        else:
            flow.coupling.couple(ids, torch.full_like(ids, flow.pinned_by(each.tensor)))
    zero = any(each.tag is not None and each.tag.zero for each in wide)
    if label in out_labels:
        if len(wide) > 1:
            flow.heads.append(ids)
        flow.put(out, ids, out_labels.index(label), zero)
    elif not zero:
        flow.coupling.pin(ids, f"even zeroed, they are not zero at {flow.coupling.place}")
    return True


PRODUCT_RULES: dict[str, Rule] = {
    **dict.fromkeys(("matmul", "rmatmul", "mm", "bmm"), matmul),
    **dict.fromkeys(("addmm", "baddbmm"), added_product),
    "einsum": einsum,
    "scaled_dot_product_attention": attention,
    "multi_head_attention_forward": multi_head_attention,
}
