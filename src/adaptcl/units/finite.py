"""Finite numbers: a fast check of many tensors for NaN, infinities and large values.

Checking tensors one by one would make a GPU wait a hundred times per update. One sum over all of
them is enough: if it is finite, all numbers are. The converse may fail, because numbers of 10³⁸ add
up to infinity; only then is every number checked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor


def first_not_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """The name of the first tensor that holds NaN or an infinity, or None."""
    floats = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}
    if not floats or math.isfinite(_sum(list(floats.values()))):
        return None
    return next(
        (name for name, tensor in floats.items() if not bool(torch.isfinite(tensor).all())), None
    )


def largest(tensors: list[Tensor]) -> list[float]:
    """The largest absolute value of each tensor; no tensor may be empty."""
    if tensors and tensors[0].device.type != "cpu":
        found: list[float] = torch.stack(torch._foreach_norm(tensors, math.inf)).tolist()
        return found
    # On a CPU a norm takes ten times as long.
    return [max(map(abs, _ends(tensor))) for tensor in tensors]


def _ends(tensor: Tensor) -> tuple[float, float]:
    low, high = torch.aminmax(tensor)
    return low.item(), high.item()


def _sum(tensors: list[Tensor]) -> float:
    if tensors[0].device.type == "cpu":
        return sum(tensor.sum().item() for tensor in tensors)
    # A GPU can sum absolute values of all tensors at once.
    return torch.stack(torch._foreach_norm(tensors, 1)).sum().item()
