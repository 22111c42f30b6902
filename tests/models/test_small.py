from __future__ import annotations

import pytest
import torch

from adaptcl.errors import SettingError
from adaptcl.models import build
from adaptcl.units import trace


def test_small_has_66_thousand_parameters_and_176_units() -> None:
    model = build("small", (1, 28, 28), 10, seed=0)
    assert sum(p.numel() for p in model.parameters()) == 66_170
    assert trace(model, torch.randn(1, 1, 28, 28)).count == 16 + 32 + 64 + 64


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (4, 9, 11)])
def test_small_takes_images_of_any_size(shape: tuple[int, ...]) -> None:
    assert build("small", shape, 7, seed=0)(torch.randn(2, *shape)).shape == (2, 7)


@pytest.mark.parametrize("shape", [(1, 7, 28), (64,)])
def test_small_refuses_what_is_no_image_or_too_small_a_one(shape: tuple[int, ...]) -> None:
    with pytest.raises(SettingError, match="at least 8 by 8 pixels"):
        build("small", shape, 10, seed=0)
