"""The group lasso's coefficient λ for workers that start after the first round.

A worker finds its λ from the loss on its first batch (`training/group_lasso.py`). On the first
model all workers find about the same λ. A worker that starts in round 30 would see a model that is
nearly trained, or that the lasso has already shrunk, and would find a λ several times too small or
too large. So the server gives it the mean of what others found on the first model. Workers with
equally many units count first, because a smaller sub-model has a smaller penalty.
"""

from __future__ import annotations

import math

from adaptcl.storage import Tree
from adaptcl.units import Kept


class FirstCoefficients:
    """The λ that workers found on the first model."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[float, int]] = {}
        """By number of units: the sum of all λ, and how many workers found one."""

    def add(self, kept: Kept, found: float | None) -> None:
        """Note the λ of a worker that began with the first model; None if it reports none."""
        if found is not None:
            units = int(kept.sum())
            total, count = self._found.get(units, (0.0, 0))
            self._found[units] = (total + found, count + 1)

    def mean(self, kept: Kept) -> float | None:
        """The λ for a worker with these units that has none; None while nobody has found one."""
        if not self._found:
            return None
        same_size = self._found.get(int(kept.sum()))
        used = [same_size] if same_size else list(self._found.values())
        return math.fsum(total for total, _ in used) / sum(count for _, count in used)

    def snapshot(self) -> Tree:
        return [[units, *found] for units, found in self._found.items()]

    def restore(self, tree: Tree) -> None:
        self._found = {units: (total, count) for units, total, count in tree}
