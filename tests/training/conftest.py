"""A small convolutional net, some digits, and tasks about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from adaptcl.data import Samples, load
from adaptcl.training import Recipe, Task
from adaptcl.training.gpu.task_dropout import Drop
from adaptcl.units import Kept, State, UnitMap, cut, trace

RECIPE = Recipe(epochs=1, batch_size=16, learning_rate=0.05, strength=0.3)
Tasks = Callable[..., Task]


@pytest.fixture(scope="session")
def digits() -> Samples:
    """Eighty handwritten digits of 8 × 8 pixels."""
    return load("digits").train.take(torch.arange(80))


@pytest.fixture(scope="session")
def net() -> nn.Module:
    """Six and eight filters with batch norm: fourteen units."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(),
        nn.Linear(128, 10),
    )  # fmt: skip


@pytest.fixture(scope="session")
def units(net: nn.Module) -> UnitMap:
    """The units of the net."""
    return trace(net, torch.zeros(2, 1, 8, 8))


@pytest.fixture(scope="session")
def task(net: nn.Module, units: UnitMap) -> Tasks:
    """A task for worker 0 in round 1; keywords other than these change the recipe."""

    def make(
        *,
        kept: Kept | None = None,
        state: State | None = None,
        worker: int = 0,
        round: int = 1,
        pruning: Any = None,
        **recipe: Any,
    ) -> Task:
        kept = units.everything() if kept is None else kept
        state = cut(net.state_dict(), units, kept) if state is None else state
        return Task(worker, round, state, kept, replace(RECIPE, **recipe), pruning)

    return make


@pytest.fixture(scope="session")
def drop() -> Drop:
    """Dropout by a seed, as the GPU's kernel does it, in PyTorch's own operations."""

    def dropped(
        x: Tensor, probability: float, scale: float, dice: Tensor, number: int
    ) -> tuple[Tensor, Tensor]:
        seed, passes = dice.tolist()
        generator = torch.Generator().manual_seed(seed ^ (passes << 8) ^ number)
        mask = torch.rand(x.shape, generator=generator) >= probability
        return torch.where(mask, x * scale, 0.0), mask

    return dropped
