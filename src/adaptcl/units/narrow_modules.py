"""Modules of PyTorch that compute something else once they are narrower, made to compute the same.

Multi-head attention computes the size of a head from the width of its input, and norms and means
divide by the number of entries they are given.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adaptcl.units.tensors import OperationMode


class NarrowAttention(nn.MultiheadAttention):
    """Multi-head attention whose heads together are narrower than its input.

    PyTorch computes the size of a head as the width of the input divided by the number of heads, so
    its module cannot lose a head. This one can. Its tensors have the same names.
    """

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As in `nn.MultiheadAttention`; `is_causal` is only a hint about the mask."""
        batched = query.dim() == 3
        inputs = [each if batched else each.unsqueeze(0) for each in (query, key, value)]
        if batched and not self.batch_first:
            inputs = [each.transpose(0, 1) for each in inputs]
        queries, keys, values = self._projected(*inputs)
        added: list[tuple[Tensor, Tensor]] = []
        if self.bias_k is not None and self.bias_v is not None:
            added.append((self.bias_k, self.bias_v))
        if self.add_zero_attn:
            added.append((keys.new_zeros(1, 1, keys.shape[-1]),) * 2)
        for more_keys, more_values in added:
            keys = torch.cat([keys, more_keys.expand(len(keys), 1, -1)], 1)
            values = torch.cat([values, more_values.expand(len(values), 1, -1)], 1)
        mask = _added_mask(queries, key_padding_mask, attn_mask, len(added))
        queries, keys, values = (self._by_head(each) for each in (queries, keys, values))
        dropout = self.dropout if self.training else 0.0
        weights: Tensor | None = None
        if need_weights:
            scores = queries @ keys.transpose(-2, -1) * self.head_dim**-0.5
            weights = (scores if mask is None else scores + mask).softmax(-1)
            weights = F.dropout(weights, dropout)
            mixed = weights @ values
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            mixed = F.scaled_dot_product_attention(queries, keys, values, mask, dropout)
        output: Tensor = self.out_proj(mixed.transpose(1, 2).flatten(2))
        if not batched:
            return output.squeeze(0), None if weights is None else weights.squeeze(0)
        return output if self.batch_first else output.transpose(0, 1), weights

    def _by_head(self, each: Tensor) -> Tensor:
        return each.reshape(*each.shape[:2], -1, self.head_dim).transpose(1, 2)

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        if self.in_proj_weight is None:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        else:
            weights = self.in_proj_weight.chunk(3)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        return tuple(map(F.linear, (query, key, value), weights, biases))


def narrow_attention(module: nn.MultiheadAttention) -> None:
    """Let a module work with the heads that its tensors still hold."""
    rows = module.q_proj_weight if module.in_proj_weight is None else module.in_proj_weight
    width = len(rows) if module.in_proj_weight is None else len(rows) // 3
    if width != module.num_heads * module.head_dim or rows.shape[1] != module.embed_dim:
        module.num_heads = width // module.head_dim
        # PyTorch's transformer layers run modules that say this step by step, and not as one
        # operation, which would compute the size of a head from the width again.
        module._qkv_same_embed_dim = False
        module.__class__ = NarrowAttention


def _added_mask(
    queries: Tensor, padding: Tensor | None, mask: Tensor | None, more_keys: int
) -> Tensor | None:
    """Both masks as one that is added to the scores [samples, heads, queries, keys]."""
    total: Tensor | None = None
    if padding is not None:
        total = _as_added(padding, queries).reshape(-1, 1, 1, padding.shape[-1])
    if mask is not None:
        each = _as_added(mask, queries)
        if each.dim() == 3:
            each = each.reshape(len(queries), -1, *each.shape[1:])
        total = each if total is None else total + each
    return total if total is None or not more_keys else F.pad(total, (0, more_keys))


def _as_added(mask: Tensor, queries: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(queries.dtype)
    return torch.zeros_like(mask, dtype=queries.dtype).masked_fill_(mask, -torch.inf)


class AveragesAsWhole:
    """A module that averages over units, and counts those that were cut as zeros.

    So what is left has the mean and the variance that it has if the others are zero.
    """

    averaged: _Averaged

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with _WholeAverages(self.averaged):
            return super().forward(*args, **kwargs)  # type: ignore[misc]


@dataclass(frozen=True)
class _Averaged:
    dim: int
    """From the end."""
    kept: int
    whole: int

    def fits(self, activation: Tensor) -> bool:
        return activation.dim() >= -self.dim and activation.shape[self.dim] == self.kept


class _WholeAverages(OperationMode):
    """Fills up with zeros what is normalised or averaged along one dimension."""

    def __init__(self, averaged: _Averaged) -> None:
        super().__init__()
        self._averaged = averaged

    def on_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name, each = getattr(func, "__name__", ""), self._averaged
        if name not in _AVERAGING or not each.fits(args[0]):
            return func(*args, **kwargs)
        if name == "mean":
            dims = args[1] if len(args) > 1 else kwargs.get("dim")
            dims = tuple(dims) if isinstance(dims, tuple | list) else (dims,)
            if dims not in ((each.dim,), (each.dim + args[0].dim(),)):
                return func(*args, **kwargs)
            return args[0].sum(*args[1:], **kwargs) / each.whole
        activation, *others = args
        gone = each.whole - each.kept

        def widened(value: Any) -> Any:
            if isinstance(value, Tensor):
                return F.pad(value, (0, gone))
            return (each.whole,) if isinstance(value, tuple | list) else value

        filled = F.pad(activation, (*(0, 0) * (-1 - each.dim), 0, gone))
        named = {key: widened(value) for key, value in kwargs.items()}
        return func(filled, *map(widened, others), **named).narrow(each.dim, 0, each.kept)


_AVERAGING = frozenset({"mean", "layer_norm", "rms_norm", "group_norm"})


def average_as_whole(module: nn.Module, dim: int, stays: Tensor) -> None:
    """Let a module average over as many entries as before the cut."""
    averaged = _Averaged(dim, int(stays.sum()), len(stays))
    if averaged.kept < averaged.whole:
        module.averaged = averaged  # type: ignore[assignment]
        kind: Any = type(module)
        module.__class__ = _averaging_class(kind)


@cache
def _averaging_class(of: Any) -> Any:
    return type(f"Narrow{of.__name__}", (AveragesAsWhole, of), {})
