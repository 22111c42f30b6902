"""A worker, an order to prune by, and what makes two updates the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from adaptcl.data import Samples
from adaptcl.training.worker import Worker
from adaptcl.units import State, UnitMap


@pytest.fixture
def worker(net: nn.Module, units: UnitMap, digits: Samples) -> Worker:
    return Worker(0, digits, net, units, seed=7)


@pytest.fixture(scope="session")
def order(units: UnitMap) -> Tensor:
    """An importance for each of the fourteen units."""
    return torch.rand(units.count, generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="session")
def same() -> Callable[[State, State], bool]:
    """Whether two states have the same tensors, bit for bit."""

    def alike(one: State, other: State) -> bool:
        return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)

    return alike
