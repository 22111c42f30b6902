"""How alike two sub-models are (the paper's definition of similarity)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from adaptcl.units import Kept, UnitMap


def similarity(units: UnitMap, first: Kept, second: Kept) -> float:
    """Mean over the layers of |intersection| / |union| of the kept units.

    Layers that are never pruned do not count. Two empty layers are alike.
    """
    ratios = []
    for layer in units.layers:
        one = first[layer.units.start : layer.units.stop]
        two = second[layer.units.start : layer.units.stop]
        union = int((one | two).sum())
        ratios.append(int((one & two).sum()) / union if union else 1.0)
    return sum(ratios) / len(ratios) if ratios else 1.0


def mean_similarity(units: UnitMap, sub_models: Sequence[Kept]) -> float:
    """Mean similarity over all pairs; 1 for fewer than two sub-models."""
    pairs = [similarity(units, a, b) for a, b in combinations(sub_models, 2)]
    return sum(pairs) / len(pairs) if pairs else 1.0
