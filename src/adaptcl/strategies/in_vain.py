"""Workers that are too slow and would be as slow with a smaller sub-model: the user is told once.

Pruning them would only make the model worse (`rates.follows_size`), so the others wait for them.
"""

from __future__ import annotations

from collections.abc import Sequence

from adaptcl.snapshot import Tree
from adaptcl.strategies.harm import would_prune_in_vain
from adaptcl.strategies.rates import Point, RateSettings, follows_size, pruned_rate


class InVain:
    """Who is slow at any size, and of whom the user has been told."""

    def __init__(self) -> None:
        self._told: set[int] = set()
        self._new: list[int] = []

    def look(
        self, worker: int, history: Sequence[Point], target: float, settings: RateSettings
    ) -> None:
        """Note a worker that its newest time would have pruned, were it not for those before."""
        if worker in self._told or follows_size(history):
            return
        if pruned_rate(history[-1:], target, settings) > 0:
            self._told.add(worker)
            self._new.append(worker)

    def warnings(self) -> tuple[str, ...]:
        """What to tell the user of who was noted since the last time."""
        new, self._new = self._new, []
        return (would_prune_in_vain(new),) if new else ()

    def snapshot(self) -> Tree:
        """All that is needed to go on, once warnings have been taken."""
        return sorted(self._told)

    def restore(self, tree: Tree) -> None:
        """Go on from a snapshot."""
        self._told = set(tree)
