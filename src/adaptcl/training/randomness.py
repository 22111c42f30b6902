"""Whether a model draws random numbers while it trains (dropout and its like)."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn


def draws_randomness(model: nn.Module, example: Tensor) -> bool:
    """Try it: one training-mode forward pass on a copy, and look whether a generator moved."""
    with torch.random.fork_rng(), torch.no_grad():
        before = _states(example.device)
        copy.deepcopy(model).train()(example)
        after = _states(example.device)
        return not all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def _states(device: torch.device) -> list[Tensor]:
    """The states of the generators that a model on this device could draw from."""
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states
