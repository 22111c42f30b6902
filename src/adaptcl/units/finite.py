"""Whether all numbers of many tensors are finite, and how large: asked once for all of them.

To look at every tensor by itself would make a GPU stop and wait a hundred times for an update.
The sum of a tensor is enough: it is finite only if all of its numbers are. The other way round it
may not be so, as numbers of 10³⁸ add up to infinity; only then each number is looked at.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor


def first_not_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """The name of the first tensor that holds NaN or an infinity; None if there is none."""
    floats = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}
    if not floats or math.isfinite(_sum(list(floats.values()))):
        return None
    return next(
        (name for name, tensor in floats.items() if not bool(torch.isfinite(tensor).all())), None
    )


def largest(tensors: list[Tensor]) -> list[float]:
    """By tensor its largest number, whatever its sign; none of them may be empty."""
    if tensors and tensors[0].device.type != "cpu":
        found: list[float] = torch.stack(torch._foreach_norm(tensors, math.inf)).tolist()
        return found
    # A norm takes ten times as long on a processor.
    return [max(map(abs, _ends(tensor))) for tensor in tensors]


def _ends(tensor: Tensor) -> tuple[float, float]:
    low, high = torch.aminmax(tensor)
    return low.item(), high.item()


def _sum(tensors: list[Tensor]) -> float:
    if tensors[0].device.type == "cpu":
        return sum(tensor.sum().item() for tensor in tensors)
    # Of absolute values, because that is what a GPU can do for all tensors at once.
    return torch.stack(torch._foreach_norm(tensors, 1)).sum().item()
