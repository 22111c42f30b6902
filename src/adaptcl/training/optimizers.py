"""SGD with momentum and weight decay: one fused operation over all parameters.

PyTorch's optimizer uses the same operation, but on a CPU it copies every gradient whose channels
are last, and looks at each parameter in Python before each step. Here parameters are handed over
as what they are in memory, one row of numbers after the other, and looked at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from adaptcl.training.task import Recipe

_FUSED = (torch.float32, torch.float64)
"""On a CPU PyTorch 2.13 leaves parameters of other types as they are, without a word."""


@dataclass
class _Group:
    """Parameters of one type on one device, which is what a fused operation takes."""

    is_fused: bool
    parameters: list[nn.Parameter] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    velocities: list[Tensor] = field(default_factory=list)


class SGD:
    """The optimizer of a recipe, for a model that begins from rest and without gradients."""

    def __init__(self, model: nn.Module, recipe: Recipe) -> None:
        self._recipe = recipe
        groups: dict[tuple[torch.device, torch.dtype], _Group] = {}
        for parameter in model.parameters():
            parameter.grad = None
            if parameter.requires_grad:
                kind = (parameter.device, parameter.dtype)
                fused = parameter.device.type != "cpu" or parameter.dtype in _FUSED
                group = groups.setdefault(kind, _Group(fused))
                values = _in_memory_order(parameter.detach())
                group.parameters.append(parameter)
                group.values.append(values)
        self._groups = list(groups.values())

    @torch.no_grad()
    def step(self) -> None:
        """Move all parameters that have a gradient, and let go of the gradients."""
        for group in self._groups:
            found = [(n, p.grad) for n, p in enumerate(group.parameters) if p.grad is not None]
            for parameter in group.parameters:
                parameter.grad = None
            if not found:
                continue
            first = False
            if self._recipe.momentum and not group.velocities:
                # What moves for the first time has its gradient for a velocity. Only where all
                # do can the operation be told so, and nothing needs to be set to zero before.
                first = group.is_fused and len(found) == len(group.parameters)
                make = torch.empty_like if first else torch.zeros_like
                group.velocities = [make(values) for values in group.values]
            values = [group.values[n] for n, _ in found]
            velocities = [group.velocities[n] for n, _ in found] if group.velocities else []
            gradients = [_in_memory_order(gradient) for _, gradient in found]
            if group.is_fused:
                self._move_fused(values, gradients, velocities, first=first)
            else:
                self._move(values, gradients, velocities)

    def _move_fused(
        self,
        values: list[Tensor],
        gradients: list[Tensor],
        velocities: list[Tensor],
        *,
        first: bool,
    ) -> None:
        torch._fused_sgd_(
            values,
            gradients,
            velocities,
            weight_decay=self._recipe.weight_decay,
            momentum=self._recipe.momentum,
            lr=self._recipe.learning_rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=first,
        )

    def _move(
        self, values: list[Tensor], gradients: list[Tensor], velocities: list[Tensor]
    ) -> None:
        torch._foreach_add_(gradients, values, alpha=self._recipe.weight_decay)
        if velocities:
            torch._foreach_mul_(velocities, self._recipe.momentum)
            torch._foreach_add_(velocities, gradients)
        torch._foreach_add_(values, velocities or gradients, alpha=-self._recipe.learning_rate)


def _in_memory_order(tensor: Tensor) -> Tensor:
    """The same memory with its dimensions in the order in which they lie there."""
    return tensor if tensor.is_contiguous() or tensor.dim() != 4 else tensor.permute(0, 2, 3, 1)


# The optimizers of local training, by name. Each task begins with a fresh one, from rest.

_FUSED_ADAMW = (torch.float32, torch.float64)


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
                fused=all(parameter.dtype in _FUSED_ADAMW for parameter in trained),
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


# FedProx's term: a pull of the parameters back to those the task began with (Li et al., 2020).
#
# It adds μ/2 · ‖θ − θ_begin‖² to a worker's loss, so that workers with unequal data drift less
# far apart in a round. With `fedavg` that is FedProx; any other strategy can have it too.


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
