"""Similarity of sub-models, as the paper defines it (Eq. 3)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from adaptcl.units import Kept, UnitMap

_AT_A_TIME = 256


def mean_similarity(units: UnitMap, sub_models: Sequence[Kept]) -> float:
    """Mean similarity over all pairs; 1 for fewer than two sub-models.

    The similarity of two is the mean over the layers of |intersection| / |union| of their kept
    units. Layers that are never pruned do not count. Two empty layers have the similarity 1.

    A thousand workers make half a million pairs, so matrix products count them, some sub-models
    against all at a time.
    """
    count = len(sub_models)
    if count < 2 or not units.layers:
        return 1.0
    kept = torch.stack(list(sub_models)).float()
    total = torch.zeros((), dtype=torch.float64)
    for layer in units.layers:
        held = kept[:, layer.units.start : layer.units.stop]
        sizes = held.sum(1)
        for first in range(0, count, _AT_A_TIME):
            some = slice(first, first + _AT_A_TIME)
            common = held[some] @ held.T
            union = sizes[some, None] + sizes - common
            total += torch.where(union > 0, common.double() / union, 1.0).sum()
    # Every pair was counted twice, and every sub-model once with itself.
    return (float(total) / len(units.layers) - count) / (count * (count - 1))
