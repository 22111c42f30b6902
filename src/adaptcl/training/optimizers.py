"""The optimizers of local training, by name. Each task begins with a fresh one, from rest."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import nn

from adaptcl.training.recipe import Recipe
from adaptcl.training.sgd import SGD

_FUSED = (torch.float32, torch.float64)


class Optimizer(Protocol):
    """Moves a model's parameters along their gradients."""

    def step(self) -> None:
        """Move all parameters that have a gradient, and let go of the gradients."""
        ...


class AdamW:
    """PyTorch's AdamW, with the group lasso among the gradients that it scales."""

    def __init__(self, model: nn.Module, recipe: Recipe) -> None:
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        for parameter in trained:
            parameter.grad = None
        # An empty group is refused, and a model may have nothing to train.
        self._inner = (
            torch.optim.AdamW(
                trained,
                lr=recipe.learning_rate,
                weight_decay=recipe.weight_decay,
                fused=all(parameter.dtype in _FUSED for parameter in trained),
            )
            if trained
            else None
        )

    def step(self) -> None:
        """Move all parameters that have a gradient, and let go of the gradients."""
        if self._inner is not None:
            self._inner.step()
            self._inner.zero_grad()


def optimizer(model: nn.Module, recipe: Recipe) -> Optimizer:
    """The one that the recipe names."""
    return AdamW(model, recipe) if recipe.optimizer == "adamw" else SGD(model, recipe)
