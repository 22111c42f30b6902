"""Whether all numbers of many tensors are finite, asked once for all of them.

To look at every tensor by itself would make a GPU stop and wait a hundred times for an update.
The sum of a tensor is enough: it is finite only if all of its numbers are. The other way round it
may not be so, as numbers of 10³⁸ add up to infinity; only then each number is looked at.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def first_not_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """The name of the first tensor that holds NaN or an infinity; None if there is none."""
    floats = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}
    sums = [tensor.sum() for tensor in floats.values()]
    if not sums or bool(torch.isfinite(torch.stack([each.double() for each in sums])).all()):
        return None
    return next(
        (name for name, tensor in floats.items() if not bool(torch.isfinite(tensor).all())), None
    )
