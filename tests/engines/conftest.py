"""A model small enough to count by hand, and settings of the world around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from adaptcl.engines.environment import Environment, EnvironmentSettings
from adaptcl.settings import build
from adaptcl.units import UnitMap, trace

MakeEnvironment = Callable[..., Environment]


@pytest.fixture(scope="session")
def units() -> UnitMap:
    """A convolution of 8 units and a linear layer that reads them."""
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 4)
    )
    return trace(model, torch.randn(2, 1, 4, 4))


@pytest.fixture
def make_environment(units: UnitMap) -> MakeEnvironment:
    """An environment from settings by name; unless said otherwise, for two equal workers."""

    def make(
        *,
        workers: int = 2,
        epochs: float = 2.0,
        seed: int = 1,
        samples: Sequence[int] = (),
        **settings: Any,
    ) -> Environment:
        if "bandwidths" not in settings and "sigma" not in settings:
            settings["bandwidths"] = (1.0,) * workers
        chosen = build(EnvironmentSettings, settings)
        return Environment(chosen, units, workers, epochs, seed, samples)

    return make
