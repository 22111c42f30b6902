"""Sparse SGD on a worker's sub-model: the loop in which all the time goes.

There are two trainers with one meaning. This one is the plain loop, right everywhere; the one in
`captured.py` records a step once on a GPU and replays it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adaptcl.data import Samples
from adaptcl.training.batches import crop_and_flip
from adaptcl.training.group_lasso import GroupLasso, coefficient
from adaptcl.training.layout import laid_out, quickened
from adaptcl.training.optimizers import Proximal, optimizer
from adaptcl.training.task import Recipe
from adaptcl.units import Kept, State, UnitMap, submodel


class Trainer(Protocol):
    """Holds the sub-model of one worker's task and trains it."""

    def for_a_task(self) -> Trainer:
        """One that no other task has, with no sub-model loaded.

        A worker that left and came back may still be busy with an older task.
        """
        ...

    def load(self, kept: Kept, state: State) -> nn.Module:
        """The sub-model with these units and tensors, ready to be trained."""
        ...

    def run(
        self,
        model: nn.Module,
        kept: Kept,
        batches: Sequence[Tensor],
        moves: Sequence[Tensor] | None,
        recipe: Recipe,
        lasso: float,
        towards: State | None = None,
    ) -> Tensor:
        """One step on each batch of indexes, from a fresh optimizer; the losses.

        `towards` is what the recipe's proximal term pulls to, where there is one.
        """
        ...

    def state(self, model: nn.Module) -> State:
        """The tensors of a sub-model that was loaded, apart from it and in the usual layout."""
        ...

    def release(self) -> None:
        """The sub-model that was loaded is not needed any more."""
        ...


class PlainTrainer:
    """The plain loop, on any device and for any model."""

    def __init__(
        self,
        model: nn.Module,
        units: UnitMap,
        samples: Samples,
        layout: torch.memory_format = torch.contiguous_format,
    ) -> None:
        self._model = model
        self._units = units
        self._samples = samples
        self._layout = layout

    def for_a_task(self) -> PlainTrainer:
        """Itself: it holds nothing of a task."""
        return self

    def load(self, kept: Kept, state: State) -> nn.Module:
        """A fresh sub-model."""
        model = submodel(self._model, self._units, kept, state)
        on_cpu = self._samples.labels.device.type == "cpu"
        return quickened(model, self._layout) if on_cpu else model

    def run(
        self,
        model: nn.Module,
        kept: Kept,
        batches: Sequence[Tensor],
        moves: Sequence[Tensor] | None,
        recipe: Recipe,
        lasso: float,
        towards: State | None = None,
    ) -> Tensor:
        """One step after the other."""
        penalty = GroupLasso(model, self._units, kept) if lasso > 0 else None
        proximal = Proximal(model, towards, recipe.proximal) if towards is not None else None
        chosen = optimizer(model, recipe)
        device = self._samples.labels.device
        losses = torch.zeros(len(batches), device=device)
        model.train()
        for number, indexes in enumerate(batches):
            inputs, labels = self._samples.batch(indexes.to(device))
            if moves is not None:
                inputs = crop_and_flip(inputs, moves[number])
            loss = F.cross_entropy(model(laid_out(inputs, self._layout)), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            if penalty is not None:
                penalty.add_gradient(lasso)
            if proximal is not None:
                proximal.add_gradient()
            chosen.step()
            losses[number] = loss.detach()
        return losses

    def state(self, model: nn.Module) -> State:
        """Copies of the model's tensors."""
        return {
            name: tensor.detach().clone(memory_format=torch.contiguous_format)
            for name, tensor in model.state_dict().items()
        }

    def release(self) -> None:
        """Nothing to do: a sub-model is gone with its last user."""


def first_coefficient(
    model: nn.Module,
    units: UnitMap,
    kept: Kept,
    samples: Samples,
    indexes: Tensor,
    strength: float,
) -> float:
    """The group lasso's λ for a model that is about to see its very first batch.

    Batch-norm statistics are put back, so the look costs the model nothing.
    """
    if strength == 0:
        return 0.0
    inputs, labels = samples.batch(indexes.to(samples.labels.device))
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.train()
    with torch.no_grad():
        loss = float(F.cross_entropy(model(inputs), labels))
        for name, buffer in model.named_buffers():
            buffer.copy_(before[name])
    return coefficient(strength, loss, GroupLasso(model, units, kept).penalty())
