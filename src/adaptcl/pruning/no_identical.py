"""*No identical*: index order from a random start of each worker's own, constant over time.

Takes identity away from *Index*: workers keep different units. The paper finds that the global
model then does not converge, so identity is what matters most.
"""

from __future__ import annotations

import torch
from torch import Tensor

from adaptcl.pruning.index import from_start
from adaptcl.pruning.order import ServerView
from adaptcl.seeds import generator


class NoIdentical:
    """Index order that starts elsewhere for each worker, at the same share of every layer."""

    summary = "by index from a random start of each worker's own, constant"
    frozen = False

    def importance(self, view: ServerView) -> Tensor:
        """Depends on the seed and the worker, never on the pruning."""
        start = float(torch.rand((), generator=generator(view.seed, "no-identical", view.worker)))
        return from_start(view.units, start)
