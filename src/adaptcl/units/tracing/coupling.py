"""Coupling: which unit candidates can only be cut together, which never, and why.

While a model is traced, every output row of every layer is a *candidate* for a unit. A residual
addition, a depthwise convolution or a shared module couples candidates; an operation that does not
survive a cut pins them. Candidate 0 stands for everything that is never cut, so pinning is coupling
with it. Whatever is coupled remembers where, so that `describe` can say why a unit is never cut.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

PINNED = 0
"""The candidate that stands for everything that is never cut."""

LONE = "a cut could leave a tensor empty"


def joined_by(place: str) -> str:
    """The reason to pin what an operation couples with something that has no units."""
    return f"joined with something that is never cut by {place}"


Join = tuple[int, int, str]
"""Why two sets of candidates became one: a candidate of the one that lost its root, what it was
coupled with (`PINNED` if it was pinned), and the operation that did so, or the reason to pin."""


class Coupling:
    """Sets of coupled candidates (a union-find); the lowest number of a set is its root."""

    def __init__(self) -> None:
        self._parent = array("q", [PINNED])
        self.place = ""
        """The operation that couples candidates now, such as `add in block`."""
        self._joined: dict[int, Join] = {}
        """By candidate that is no longer a root, the join that ended that. From there to the other
        candidate, to the join of that one and so on is a way to the root of both."""
        self.pins = 0
        """How often a set was joined with the candidate that is never cut."""
        self._journal: list[tuple[int, int]] | None = None
        """During a trial, the changed candidates with their parents before."""

    def fresh(self, count: int) -> Tensor:
        """Make `count` new candidates that are not coupled."""
        start = len(self._parent)
        self._parent.extend(range(start, start + count))
        return torch.arange(start, start + count)

    def couple(self, some: Tensor, others: Tensor, place: str = "") -> None:
        """Couple two vectors of candidates entry by entry, at a place or the current one."""
        place = place or self.place
        pairs = zip(some.tolist(), others.tolist(), strict=True)
        roots = zip(self.roots(some), self.roots(others), strict=True)
        apart = [pair for pair, (one, other) in zip(pairs, roots, strict=True) if one != other]
        for pair in apart:
            self._join(*pair, joined_by(place) if PINNED in pair else place)

    def pin(self, ids: Tensor, why: str) -> None:
        for one, root in zip(ids.tolist(), self.roots(ids), strict=True):
            if root != PINNED:
                self._join(one, PINNED, why)

    def roots(self, ids: Tensor) -> list[int]:
        parent = self._parent  # most parents are roots, which saves a call
        return [up if parent[up := parent[one]] == up else self._root(one) for one in ids.tolist()]

    def all_pinned(self, ids: Tensor) -> bool:
        return set(self.roots(ids)) <= {PINNED}

    def cause(self, one: int) -> tuple[int, str]:
        """Of a candidate that is never cut: the coupled one that was pinned, and why."""
        met, other, why = self._joined[one]
        while other != PINNED:
            met, other, why = self._joined[other]
        return met, why

    def binders(self, ids: Tensor) -> list[str]:
        """The operations that coupled several candidates, if all of them are coupled."""
        roots = set(self.roots(ids))
        if len(ids) == 1 or len(roots) > 1:
            return []
        joins = (self._joined[one] for one in ids.tolist() if one in self._joined)
        return list(dict.fromkeys(why for _, _, why in joins))

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Forget at the end whatever is coupled inside. Trials do not contain trials."""
        count, joins, pins = len(self._parent), len(self._joined), self.pins
        self._journal = []
        try:
            yield
        finally:
            for one, parent in reversed(self._journal):
                self._parent[one] = parent
            del self._parent[count:]
            while len(self._joined) > joins:
                self._joined.popitem()
            self._journal, self.pins = None, pins

    def _join(self, one: int, other: int, why: str) -> None:
        root, other_root = self._root(one), self._root(other)
        if root < other_root:
            one, other, root, other_root = other, one, other_root, root
        if root != other_root:
            self._set_parent(root, other_root)
            self._joined[root] = (one, other, why)
            self.pins += other_root == PINNED

    def _root(self, one: int) -> int:
        parent = self._parent
        while parent[one] != one:
            if parent[parent[one]] != parent[one]:
                self._set_parent(one, parent[parent[one]])
            one = parent[one]
        return one

    def _set_parent(self, one: int, parent: int) -> None:
        if self._journal is not None:
            self._journal.append((one, self._parent[one]))
        self._parent[one] = parent
