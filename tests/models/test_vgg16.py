from __future__ import annotations

import pytest
import torch

from adaptcl.errors import SettingError
from adaptcl.models import build
from adaptcl.units import flops, parameters, size_bytes, trace


def test_vgg16_is_the_papers() -> None:
    model = build("vgg16", (3, 32, 32), 10, seed=0)
    units = trace(model, torch.randn(1, 3, 32, 32))
    whole = units.everything()
    assert parameters(units, whole) == sum(p.numel() for p in model.parameters()) == 14_991_946
    assert round(parameters(units, whole) * 4 / 2**20, 1) == 57.2
    assert size_bytes(units, whole) == 4 * (14_991_946 + 2 * 4736) + 8 * 14
    assert round(flops(units, whole) / 1e6) == 627


def test_every_unit_of_vgg16_but_the_class_scores_can_be_cut() -> None:
    units = trace(build("vgg16", (3, 32, 32), 10, seed=0), torch.randn(1, 3, 32, 32))
    widths = [64] * 2 + [128] * 2 + [256] * 3 + [512] * 6 + [512]
    assert [len(layer.units) for layer in units.layers] == widths
    assert units.count == 4736
    assert len(units.bn_scales) == 14


def test_vgg16_takes_larger_images_and_other_channels() -> None:
    model = build("vgg16", (1, 64, 64), 200, seed=0).eval()
    assert model(torch.randn(2, 1, 64, 64)).shape == (2, 200)


def test_vgg16_takes_images_of_16_pixels() -> None:
    model = build("vgg16", (1, 16, 16), 10, seed=0)
    assert model(torch.randn(2, 1, 16, 16)).shape == (2, 10)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 15, 32), (64,)])
def test_vgg16_refuses_what_is_no_image_or_too_small_a_one(shape: tuple[int, ...]) -> None:
    with pytest.raises(SettingError) as refused:
        build("vgg16", shape, 10, seed=0)
    assert str(refused.value) == (
        f"The model 'vgg16' takes images of at least 16 by 16 pixels, not inputs of {shape}."
    )
