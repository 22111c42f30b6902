"""The optimizers of local training, and FedProx's pull towards the model that a task began with."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor, nn

from adaptcl.custom import custom_function
from adaptcl.errors import SettingError, describe_type
from adaptcl.settings import is_custom
from adaptcl.training.task import OPTIMIZERS, Recipe

_FUSED = (torch.float32, torch.float64)
"""On a CPU, PyTorch 2.13 silently leaves parameters of other types unchanged."""


OptimizerFactory = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
"""Makes a user's optimizer for these parameters."""
Schedule = Callable[[int], float]  # the factor of the learning rate for a round, counted from 1


def find_optimizer(name: str) -> OptimizerFactory | None:
    """The custom optimizer of this name; None if it is not a custom one."""
    if not is_custom(name):
        return None
    return custom_function(name, "an optimizer", ("parameters",), "a torch.optim.Optimizer")


def find_schedule(name: str) -> Schedule | None:
    """The custom schedule of this name; None if there is none."""
    if not name:
        return None
    if not is_custom(name):
        raise SettingError(f"schedule is {name!r}, but it must be package.module:function.")
    return custom_function(name, "a schedule", ("round",), "a factor")


def rate_factor(schedule: Schedule | None, round_: int) -> float:
    """The factor of the learning rate in a round; an error if the schedule gives none."""
    if schedule is None:
        return 1.0
    try:
        factor = float(schedule(round_))
    except Exception as error:  # a user's schedule may raise anything
        raise SettingError(
            f"The schedule failed for round {round_}: {type(error).__name__}: {error}"
        ) from error
    if not 0 <= factor < math.inf:
        raise SettingError(f"The schedule gives {factor:g} for round {round_}, but not 0 or more.")
    return factor


def optimizer(
    model: nn.Module,
    recipe: Recipe,
    rate_factor: float = 1.0,
    custom: OptimizerFactory | None = None,
) -> Optimizer:
    """A fresh optimizer of the kind that the recipe names, or a custom one."""
    if custom is not None:
        return AnyOptimizer(model, custom, rate_factor)
    if rate_factor != 1:
        recipe = replace(recipe, learning_rate=recipe.learning_rate * rate_factor)
    if recipe.optimizer not in OPTIMIZERS:
        raise SettingError(f"optimizer is {recipe.optimizer!r}, which is not known here.")
    return SGD(model, recipe) if recipe.optimizer == "sgd" else AnyOptimizer(model, adamw(recipe))


class Optimizer(Protocol):
    """Updates a model's parameters by their gradients."""

    def step(self) -> None:
        """Update all parameters that have a gradient, and drop the gradients."""
        ...


@dataclass
class _Group:
    """Parameters of one type on one device, as a fused operation needs them."""

    is_fused: bool
    parameters: list[nn.Parameter] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    velocities: list[Tensor] = field(default_factory=list)


class SGD:
    """SGD with momentum and weight decay, as one fused operation over all parameters.

    PyTorch's optimizer uses the same operation, but on a CPU it copies every channels-last
    gradient and checks each parameter in Python before each step. Here parameters are passed in
    the order of their memory and checked once.
    """

    def __init__(self, model: nn.Module, recipe: Recipe) -> None:
        self._recipe = recipe
        groups: dict[tuple[torch.device, torch.dtype], _Group] = {}
        for parameter in model.parameters():
            parameter.grad = None
            if parameter.requires_grad:
                key = (parameter.device, parameter.dtype)
                fused = parameter.device.type != "cpu" or parameter.dtype in _FUSED
                group = groups.setdefault(key, _Group(fused))
                values = _in_memory_order(parameter.detach())
                group.parameters.append(parameter)
                group.values.append(values)
        self._groups = list(groups.values())

    @torch.no_grad()
    def step(self) -> None:
        for group in self._groups:
            found = [(n, p.grad) for n, p in enumerate(group.parameters) if p.grad is not None]
            for parameter in group.parameters:
                parameter.grad = None
            if not found:
                continue
            first = False
            if self._recipe.momentum and not group.velocities:
                # In its first step a parameter's velocity is its gradient. If all parameters take
                # their first step, the operation can be told so and needs no zeros.
                first = group.is_fused and len(found) == len(group.parameters)
                make = torch.empty_like if first else torch.zeros_like
                group.velocities = [make(values) for values in group.values]
            values = [group.values[n] for n, _ in found]
            velocities = [group.velocities[n] for n, _ in found] if group.velocities else []
            gradients = [_in_memory_order(gradient) for _, gradient in found]
            if group.is_fused:
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
            else:
                self._step_plain(values, gradients, velocities)

    def _step_plain(
        self, values: list[Tensor], gradients: list[Tensor], velocities: list[Tensor]
    ) -> None:
        torch._foreach_add_(gradients, values, alpha=self._recipe.weight_decay)
        if velocities:
            torch._foreach_mul_(velocities, self._recipe.momentum)
            torch._foreach_add_(velocities, gradients)
        torch._foreach_add_(values, velocities or gradients, alpha=-self._recipe.learning_rate)


def _in_memory_order(tensor: Tensor) -> Tensor:
    """A view of the tensor with its dimensions in memory order."""
    return tensor if tensor.is_contiguous() or tensor.dim() != 4 else tensor.permute(0, 2, 3, 1)


def adamw(recipe: Recipe) -> OptimizerFactory:
    """PyTorch's AdamW. The group lasso is part of the gradients that it scales."""
    return lambda trained: torch.optim.AdamW(
        trained,
        lr=recipe.learning_rate,
        weight_decay=recipe.weight_decay,
        fused=all(parameter.dtype in _FUSED for parameter in trained),
    )


class AnyOptimizer:
    """An optimizer of PyTorch's kind, perhaps a user's, at the learning rate of the round."""

    def __init__(self, model: nn.Module, make: OptimizerFactory, rate_factor: float = 1.0) -> None:
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        for parameter in trained:
            parameter.grad = None
        self._inner: torch.optim.Optimizer | None = None
        if not trained:
            return  # PyTorch refuses an empty group
        self._inner = make(trained)
        if not isinstance(self._inner, torch.optim.Optimizer):
            raise SettingError(
                f"optimizer returns {describe_type(self._inner)}, but it must return a "
                "torch.optim.Optimizer of the parameters that it gets."
            )
        for group in self._inner.param_groups:
            group["lr"] *= rate_factor

    def step(self) -> None:
        if self._inner is not None:
            self._inner.step()
            self._inner.zero_grad()


class Proximal:
    """FedProx's term (Li et al., 2020): a pull back to the parameters the task began with.

    It adds μ/2 · ‖θ − θ_begin‖² to a worker's loss, so that workers with unequal data drift less
    far apart in a round. With `fedavg` that is FedProx; any other strategy can use it too.
    """

    def __init__(self, model: nn.Module, towards: Mapping[str, Tensor], weight: float) -> None:
        """`towards` holds θ_begin, by parameter name."""
        self._weight = weight
        self._pairs = [
            (parameter, towards[name].to(parameter.device))
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        ]

    @torch.no_grad()
    def add_gradient(self) -> None:
        """Add the pull to the parameters' gradients."""
        for parameter, begin in self._pairs:
            if parameter.grad is not None:
                parameter.grad.add_(parameter - begin, alpha=self._weight)
