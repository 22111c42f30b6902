"""Whether a model draws random numbers while it trains (dropout and its like)."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn


def draws_randomness(model: nn.Module, example: Tensor) -> bool:
    """Try it: one training-mode forward pass on a copy, and look whether the generator moved."""
    with torch.random.fork_rng(), torch.no_grad():
        before = torch.get_rng_state()
        copy.deepcopy(model).train()(example)
        return not torch.equal(before, torch.get_rng_state())
