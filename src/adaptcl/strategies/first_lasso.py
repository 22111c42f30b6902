"""The group lasso's λ for workers that come later than the first model.

A worker finds its λ from its loss on the first batch it sees (`training/lasso.py`). With the first
model all of them find much the same. One that is first drawn in round 30, or comes then, would look
at a model that has nearly learned everything or that the lasso has made small, and so take a λ of a
fraction or a multiple of the others'. It is told the mean of those found with the first model, by
workers with as many units if there are any: of a smaller sub-model the penalty is smaller too.
"""

from __future__ import annotations

import math

from adaptcl.storage import Tree
from adaptcl.units import Kept


class FirstLasso:
    """What workers have found with the first model."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[float, int]] = {}
        """By the number of units: the sum of what was found, and by how many."""

    def note(self, kept: Kept, found: float | None) -> None:
        """A worker that began with the first model has found this; None if it does not say."""
        if found is not None:
            units = int(kept.sum())
            total, count = self._found.get(units, (0.0, 0))
            self._found[units] = (total + found, count + 1)

    def mean(self, kept: Kept) -> float | None:
        """What to tell a worker with these units, if it has found none; None while nobody has."""
        if not self._found:
            return None
        alike = self._found.get(int(kept.sum()))
        used = [alike] if alike else list(self._found.values())
        return math.fsum(total for total, _ in used) / sum(count for _, count in used)

    def snapshot(self) -> Tree:
        """All that is needed to go on."""
        return [[units, *found] for units, found in self._found.items()]

    def restore(self, tree: Tree) -> None:
        """Go on from a snapshot."""
        self._found = {units: (total, count) for units, total, count in tree}
