"""What benchmarks train: models with random data, and the usual PyTorch loop."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adaptcl import models
from adaptcl.data import Samples
from adaptcl.pruning import fit
from adaptcl.training import Recipe
from adaptcl.training.batches import batches
from adaptcl.units import Kept, UnitMap, parameters, trace

SHAPES = {"vgg16": (3, 32, 32), "small": (1, 28, 28)}
"""The models that benchmarks train, and their images."""

LASSO = 1e-5
"""A usual coefficient of the group lasso; only its cost matters here."""


@dataclass(frozen=True)
class Subject:
    """A model with its units and data."""

    name: str
    model: nn.Module
    units: UnitMap
    samples: Samples

    def cut(self, retention: float, multiple: int = 1) -> Kept:
        """A sub-model of that retention, with all layers pruned alike in random order."""
        everything = self.units.everything()
        if retention == 1:
            return everything
        order = torch.rand(self.units.count, generator=torch.Generator().manual_seed(0))
        budget = retention * parameters(self.units, everything)
        return fit(self.units, everything, order, budget, multiple)

    def batches(self, count: int, size: int) -> list[Tensor]:
        dice = torch.Generator().manual_seed(1)
        return list(batches(len(self.samples), size, count, dice))


def subject(name: str, samples: int, device: str = "cpu", seed: int = 0) -> Subject:
    """A model of the package with random images."""
    shape = SHAPES[name]
    model = models.build(name, shape, 10, seed=1).to(device)
    units = trace(model, torch.zeros(2, *shape, device=device), ())
    return Subject(name, model, units, made_up(shape, samples, seed).to(device))


def made_up(shape: tuple[int, ...], count: int, seed: int) -> Samples:
    """Random images with random labels."""
    dice = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=dice)
    labels = torch.randint(0, 10, (count,), generator=dice)
    return Samples(images, labels, mean=(0.5,) * shape[0], std=(0.25,) * shape[0])


def plain_training(
    model: nn.Module,
    samples: Samples,
    indexes: Sequence[Tensor],
    recipe: Recipe,
    groups: PlainLasso | None = None,
) -> Tensor:
    """Train with the usual PyTorch loop; return the last loss."""
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=recipe.learning_rate,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
    )
    model.train()
    loss = torch.zeros(())
    for each in indexes:
        inputs, labels = samples.batch(each.to(samples.labels.device))
        loss = F.cross_entropy(model(inputs), labels)
        whole = loss if groups is None else loss + LASSO * groups.penalty(model)
        optimizer.zero_grad()
        whole.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return loss.detach()


def copied(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model)


class PlainLasso:
    """The group lasso as a term of the loss, with a gradient by autograd."""

    def __init__(self, units: UnitMap, device: str = "cpu") -> None:
        self._slots = [
            (slot.tensor, slot.dim, slot.ids.to(device))
            for slot in units.slots
            if slot.owned and slot.tensor in units.parameters and bool((slot.ids >= 0).all())
        ]
        sizes = torch.zeros(units.count, device=device)
        for name, dim, ids in self._slots:
            shape = units.shapes[name]
            sizes[ids] += math.prod(shape) / shape[dim]
        self._root_sizes = sizes.sqrt()

    def penalty(self, model: nn.Module) -> Tensor:
        """Σ √|g|·‖θ_g‖ over the units."""
        named = dict(model.named_parameters())
        squares = torch.zeros_like(self._root_sizes)
        for name, dim, ids in self._slots:
            rows = named[name].movedim(dim, 0).reshape(len(ids), -1)
            squares = squares.index_add(0, ids, rows.square().sum(1))
        return (self._root_sizes * (squares + 1e-12).sqrt()).sum()
