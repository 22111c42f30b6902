"""The training loop on a worker's sub-model, in which all the time goes.

Two trainers do the same. `PlainTrainer` is the plain loop and works everywhere;
`gpu/captured_trainer.py` captures a step once on a GPU and replays it.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from adaptcl.data import Samples
from adaptcl.training.batches import crop_and_flip
from adaptcl.training.cpu.layout import laid_out, speed_up_on_cpu
from adaptcl.training.group_lasso import GroupLasso
from adaptcl.training.objectives.objective import CLASSIFICATION, Objective
from adaptcl.training.optimizers import OptimizerFactory, Proximal, optimizer
from adaptcl.training.task import Recipe
from adaptcl.units import Kept, State, UnitMap, submodel


class Trainer(Protocol):
    """Holds one sub-model and trains it."""

    def for_a_task(self) -> Trainer:
        """A trainer that no other task uses, with no sub-model loaded.

        A worker that left and came back may still be training an older task.
        """
        ...

    def load(self, kept: Kept, state: State) -> nn.Module:
        """Hold the sub-model with these units and tensors in place of the one before; returns it.

        Whoever changes it changes what is trained.
        """
        ...

    def run(
        self,
        batches: Sequence[Tensor],
        moves: Sequence[Tensor] | None,
        recipe: Recipe,
        lasso_lambda: float,
        towards: State | None = None,
        rate_factor: float = 1.0,
    ) -> Tensor:
        """Train the sub-model with a fresh optimizer; returns the loss of each mini-batch.

        `batches` holds the indexes of their samples. An optimizer step averages the gradients of
        `recipe.accumulation` mini-batches. `towards` are the tensors that the recipe's proximal
        term pulls to, if it has one. The learning rate is multiplied by `rate_factor`.
        """
        ...

    def state(self) -> State:
        """Copies of the sub-model's tensors, contiguous."""
        ...

    def release(self) -> None:
        """Let go of the sub-model."""
        ...


class PlainTrainer:
    """The plain loop, on any device and for any model."""

    def __init__(
        self,
        model: nn.Module,
        units: UnitMap,
        samples: Samples,
        layout: torch.memory_format = torch.contiguous_format,
        objective: Objective = CLASSIFICATION,
        custom_optimizer: OptimizerFactory | None = None,
    ) -> None:
        self._model = model
        self._units = units
        self._samples = samples
        self._layout = layout
        self._objective = objective
        self._custom_optimizer = custom_optimizer
        self._held: tuple[nn.Module, Kept] | None = None

    def for_a_task(self) -> PlainTrainer:
        fresh = copy.copy(self)
        fresh.release()
        return fresh

    def load(self, kept: Kept, state: State) -> nn.Module:
        model = submodel(self._model, self._units, kept, state)
        on_cpu = self._samples.device.type == "cpu"
        return self.hold(speed_up_on_cpu(model, self._layout) if on_cpu else model, kept)

    def hold(self, model: nn.Module, kept: Kept) -> nn.Module:
        """Hold a sub-model that was made elsewhere, and return it."""
        self._held = model, kept
        return model

    def run(
        self,
        batches: Sequence[Tensor],
        moves: Sequence[Tensor] | None,
        recipe: Recipe,
        lasso_lambda: float,
        towards: State | None = None,
        rate_factor: float = 1.0,
    ) -> Tensor:
        assert self._held is not None
        model, kept = self._held
        penalty = GroupLasso(model, self._units, kept) if lasso_lambda > 0 else None
        proximal = Proximal(model, towards, recipe.proximal) if towards is not None else None
        chosen = optimizer(model, recipe, rate_factor, self._custom_optimizer)
        trained = [each for each in model.parameters() if each.requires_grad]
        objective, device = self._objective, self._samples.device
        losses = torch.zeros(len(batches), device=device)
        model.train()
        for number, indexes in enumerate(batches):
            inputs, targets = self._samples.batch(indexes.to(device))
            if moves is not None:
                inputs = crop_and_flip(inputs, moves[number])
            outputs = objective.outputs(model, laid_out(inputs, self._layout), targets)
            loss = objective.mean_loss(outputs, targets)
            together = _batches_of_step(number, len(batches), recipe.accumulation)
            (loss / together if together > 1 else loss).backward()  # type: ignore[no-untyped-call]
            losses[number] = loss.detach()
            if not _ends_step(number, len(batches), recipe.accumulation):
                continue
            if recipe.clip_norm > 0:
                nn.utils.clip_grad_norm_(trained, recipe.clip_norm)
            if penalty is not None:
                penalty.add_gradient(lasso_lambda)
            if proximal is not None:
                proximal.add_gradient()
            chosen.step()
        return losses

    def state(self) -> State:
        assert self._held is not None
        return {
            name: tensor.detach().clone(memory_format=torch.contiguous_format)
            for name, tensor in self._held[0].state_dict().items()
        }

    def release(self) -> None:
        self._held = None


def _ends_step(number: int, count: int, accumulation: int) -> bool:
    """Whether a step is taken after this batch; the last step may have fewer batches."""
    return (number + 1) % accumulation == 0 or number + 1 == count


def _batches_of_step(number: int, count: int, accumulation: int) -> int:
    """How many batches the step of this batch has."""
    begin = number - number % accumulation
    return min(accumulation, count - begin)
