from __future__ import annotations

import pytest
import torch

from adaptcl.models import build
from adaptcl.units import trace


def test_small_has_61_thousand_parameters_and_176_units() -> None:
    model = build("small", (1, 28, 28), 10, seed=0)
    assert sum(p.numel() for p in model.parameters()) == 61_226
    assert trace(model, torch.randn(1, 1, 28, 28)).count == 16 + 32 + 64 + 64


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (4, 5, 7)])
def test_small_takes_images_of_any_size(shape: tuple[int, ...]) -> None:
    assert build("small", shape, 7, seed=0)(torch.randn(2, *shape)).shape == (2, 7)
