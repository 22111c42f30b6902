"""Divergence: training that ends in numbers that are not finite."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from adaptcl.errors import DivergedError
from adaptcl.training.task import Update
from adaptcl.units import UnitMap


def refuse_diverged(update: Update, units: UnitMap) -> None:
    """Raise an error if the loss or a trained tensor is NaN or infinite."""
    if not math.isfinite(update.loss):
        raise divergence(update, f"its loss is {update.loss}")
    tensors = {name: t for name, t in update.state.items() if name not in units.constants}
    if (odd := first_not_finite(tensors)) is not None:
        raise divergence(update, f"{odd!r} is not finite")


def divergence(update: Update, sign: str) -> DivergedError:
    """The error for an update whose training diverged, with the sign of it."""
    return DivergedError(
        f"The training of worker {update.worker} diverged in round {update.round} ({sign}); lower "
        "learning_rate, or clip gradients with clip_norm."
    )


def first_not_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """The name of the first tensor that holds NaN or an infinity, or None.

    Checking tensors one by one would make a GPU wait a hundred times per update. One sum over all
    of them is enough: if it is finite, all numbers are. The converse may fail, because numbers of
    10³⁸ add up to infinity; only then is every number checked.
    """
    floats = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}
    if not floats or math.isfinite(_total(list(floats.values()))):
        return None
    return next(
        (name for name, tensor in floats.items() if not bool(torch.isfinite(tensor).all())), None
    )


def _total(tensors: list[Tensor]) -> float:
    if tensors[0].device.type == "cpu":
        return sum(tensor.sum().item() for tensor in tensors)
    # A GPU can sum absolute values of all tensors at once.
    return torch.stack(torch._foreach_norm(tensors, 1)).sum().item()
