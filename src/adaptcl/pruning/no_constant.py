"""*No constant*: index order from a new random start at each pruning, identical for all workers.

Takes constancy away from *Index*. The paper finds that the global model converges, but to a lower
accuracy.
"""

from __future__ import annotations

import torch
from torch import Tensor

from adaptcl.pruning.index import from_start
from adaptcl.pruning.order import ServerView
from adaptcl.seeds import generator


class NoConstant:
    """Index order that starts elsewhere at each pruning, at the same share of every layer."""

    summary = "by index from a new start at each pruning, identical for all workers"
    frozen = False

    def importance(self, view: ServerView) -> Tensor:
        """Depends on the seed and the number of the pruning, never on the worker."""
        start = float(torch.rand((), generator=generator(view.seed, "no-constant", view.pruning)))
        return from_start(view.units, start)
