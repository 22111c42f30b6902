"""`adapt_strength`: a pruning that would hurt waits while the group lasso's λ is raised.

The group lasso makes the units that will go small. Where it has not done so yet, the server can
give it more weight and put the pruning off. That has its price, in λ and in rounds at the old
sizes, so it ends as soon as one more round gains little: when the pruning has become harmless, when
the importance that it would cut away falls no longer, or when a pruning interval has gone by. From
the pruning on λ is what it was.
"""

from __future__ import annotations

from adaptcl.storage import Tree

_RAISE = 1.5
"""λ is multiplied by this for each round of waiting."""

_MOST = 4.0
"""λ is never more than so many times itself: stronger, the lasso shrinks what is to stay."""

_WORTH_A_ROUND = 0.05
"""The importance lost must fall by this much (relative) in a round, or waiting is in vain."""


class AdaptedStrength:
    """By how much λ is raised while a pruning waits, and whether it should wait on."""

    def __init__(self, limit: float, longest: int) -> None:
        """Wait until at most `limit` of the importance is lost, and at most `longest` rounds."""
        self._limit = limit
        self._longest = longest
        self._rounds = 0
        self._lost = 1.0
        self.scale = 1.0
        """What λ is multiplied by."""

    @property
    def waiting(self) -> bool:
        """Whether a pruning has been put off."""
        return self._rounds > 0

    def waits(self, lost: float) -> bool:
        """Whether a pruning that would cut away this much importance waits another round."""
        in_vain = self.waiting and lost > (1 - _WORTH_A_ROUND) * self._lost
        if lost <= self._limit or in_vain or self._rounds >= self._longest:
            self._rounds, self.scale = 0, 1.0
            return False
        self._rounds += 1
        self._lost = lost
        self.scale = min(self.scale * _RAISE, _MOST)
        return True

    def snapshot(self) -> Tree:
        """All that is needed to go on."""
        return {"rounds": self._rounds, "lost": self._lost, "scale": self.scale}

    def restore(self, tree: Tree) -> None:
        """Go on from a snapshot."""
        self._rounds = tree["rounds"]
        self._lost = tree["lost"]
        self.scale = tree["scale"]
