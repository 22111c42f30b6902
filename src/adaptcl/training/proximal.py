"""FedProx's term: a pull of the parameters back to those the task began with (Li et al., 2020).

It adds μ/2 · ‖θ − θ_begin‖² to a worker's loss, so that workers with unequal data drift less far
apart in a round. With `fedavg` that is FedProx; any other strategy can have it too.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


class Proximal:
    """The pull on one model."""

    def __init__(self, model: nn.Module, towards: Mapping[str, Tensor], weight: float) -> None:
        """`towards` holds a tensor of the same shape for each parameter of the model."""
        self._weight = weight
        self._pairs = [
            (parameter, towards[name].to(parameter.device))
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        ]

    @torch.no_grad()
    def add_gradient(self) -> None:
        """Add the pull to the gradients that are there."""
        for parameter, begin in self._pairs:
            if parameter.grad is not None:
                parameter.grad.add_(parameter - begin, alpha=self._weight)
