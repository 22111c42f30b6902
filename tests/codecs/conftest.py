"""A model of one hidden layer, as tensors: what codecs are tried on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from adaptcl.codecs import Parcel
from adaptcl.units import Kept, State, UnitMap, cut, trace

HIDDEN = 24


@pytest.fixture(scope="session")
def units() -> UnitMap:
    """24 units between 20 inputs and 3 outputs: 480 weights, batch norm, 72 weights."""
    model = nn.Sequential(nn.Linear(20, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.Linear(HIDDEN, 3))
    return trace(model.eval(), torch.zeros(2, 20))


@pytest.fixture(scope="session")
def make_state(units: UnitMap) -> Callable[..., State]:
    """A random state of the whole model."""

    def state(seed: int, scale: float = 1.0) -> State:
        generator = torch.Generator().manual_seed(seed)
        return {
            name: torch.randn(shape, generator=generator) * scale
            if name not in units.integers
            else torch.tensor(seed)
            for name, shape in units.shapes.items()
        }

    return state


@pytest.fixture(scope="session")
def make_parcel(units: UnitMap, make_state: Callable[..., State]) -> Callable[..., Parcel]:
    """A worker's trained sub-model: a random reference and a random change of it."""

    def parcel(
        kept: Kept | None = None,
        seed: int = 1,
        change: float = 0.01,
        round: int = 100,
        weights: Tensor | None = None,
    ) -> Parcel:
        kept = units.everything() if kept is None else kept
        reference = cut(make_state(0), units, kept)
        moved = cut(make_state(seed, change), units, kept)
        state = {
            name: before + moved[name] if before.is_floating_point() else moved[name]
            for name, before in reference.items()
        }
        if weights is not None:
            state["0.weight"] = reference["0.weight"] + weights
        return Parcel(units, kept, state, reference, round)

    return parcel
