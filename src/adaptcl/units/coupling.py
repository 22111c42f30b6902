"""Which candidates for a unit stand or fall together: a union-find over integers.

While a model is traced, every output row of every layer is a candidate of its own. A residual
addition, a depthwise convolution or a shared module then couples candidates; an operation that
does not survive a cut pins them. Candidate 0 is the one that is never cut, so pinning is nothing
but coupling with it.
"""

from __future__ import annotations

import torch
from torch import Tensor

PINNED = 0
"""The candidate that everything which is never cut is coupled with."""


class Coupling:
    """Disjoint sets of candidates; the lowest number of a set stands for all of it."""

    def __init__(self) -> None:
        self._parent = [PINNED]
        self.joins = 0
        """How often two sets have become one. Sets are as they were while it is."""

    def fresh(self, count: int) -> Tensor:
        """Make `count` new candidates, coupled with nothing."""
        start = len(self._parent)
        self._parent.extend(range(start, start + count))
        return torch.arange(start, start + count)

    def couple(self, some: Tensor, others: Tensor) -> None:
        """Couple two vectors of candidates entry by entry."""
        for one, other in set(zip(some.tolist(), others.tolist(), strict=True)):
            self._join(self._root(one), self._root(other))

    def pin(self, ids: Tensor) -> None:
        """Never cut any of these."""
        for one in set(ids.tolist()):
            self._join(PINNED, self._root(one))

    def roots(self, ids: Tensor) -> list[int]:
        """The number that stands for the set of each candidate."""
        return [self._root(one) for one in ids.tolist()]

    def all_roots(self) -> list[int]:
        """The same for every candidate there is."""
        return [self._root(one) for one in range(len(self._parent))]

    def _join(self, one: int, other: int) -> None:
        low, high = sorted((one, other))
        if low != high:
            self._parent[high] = low
            self.joins += 1

    def _root(self, one: int) -> int:
        parent = self._parent
        while parent[one] != one:
            parent[one] = parent[parent[one]]
            one = parent[one]
        return one
