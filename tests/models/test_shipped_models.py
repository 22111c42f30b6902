"""The models that ship with AdaptCL: their sizes, their units and the images that they take."""

from __future__ import annotations

import pytest
import torch

from adaptcl.errors import SettingError
from adaptcl.models import MODELS, build
from adaptcl.units import flops, parameters, size_bytes, trace


@pytest.mark.slow
def test_vgg16_is_the_papers_and_every_unit_but_the_class_scores_can_be_cut() -> None:
    model = build("vgg16", (3, 32, 32), 10, seed=0)
    units = trace(model, torch.randn(1, 3, 32, 32))
    whole = units.everything()
    assert parameters(units, whole) == sum(p.numel() for p in model.parameters()) == 14_991_946
    assert round(parameters(units, whole) * 4 / 2**20, 1) == 57.2
    assert size_bytes(units, whole) == 4 * (14_991_946 + 2 * 4736) + 8 * 14
    assert round(flops(units, whole) / 1e6) == 627
    widths = [64] * 2 + [128] * 2 + [256] * 3 + [512] * 6 + [512]
    assert [len(layer.units) for layer in units.layers] == widths
    assert units.count == 4736
    assert len(units.bn_scales) == 14


@pytest.mark.slow
def test_the_paper_cuts_only_the_inner_convolutions_of_each_block_of_resnet50() -> None:
    model = build("resnet50", (3, 32, 32), 10, seed=0)
    image = torch.randn(1, 3, 16, 16)
    units = trace(model, image, MODELS["resnet50"].fixed)
    assert parameters(units, units.everything()) == 23_520_842
    assert units.count == sum(2 * n * w for n, w in ((3, 64), (4, 128), (6, 256), (3, 512)))
    assert {layer.name.rpartition(".")[2] for layer in units.layers} == {"conv1", "conv2"}
    assert "conv1" not in {layer.name for layer in units.layers}
    # Without the paper's patterns, each stage shares one set of units.
    free = trace(model, image)
    widths = {layer.name: len(layer.units) for layer in free.layers}
    assert free.count == 7552 + 64 + 256 + 512 + 1024 + 2048
    assert [widths[f"layer{n}.0.conv3"] for n in (1, 2, 3, 4)] == [256, 512, 1024, 2048]
    assert "layer1.1.conv3" not in widths


def test_small_has_66_thousand_parameters_and_176_units() -> None:
    model = build("small", (1, 28, 28), 10, seed=0)
    assert sum(p.numel() for p in model.parameters()) == 66_170
    assert trace(model, torch.randn(1, 1, 28, 28)).count == 16 + 32 + 64 + 64


def test_models_take_images_of_many_sizes_and_channels() -> None:
    for name, shape in (
        ("small", (1, 8, 8)),
        ("small", (4, 9, 11)),
        ("vgg16", (1, 16, 16)),
        ("vgg16", (3, 64, 64)),
        ("resnet50", (1, 1, 3)),
    ):
        assert build(name, shape, 7, seed=0)(torch.randn(2, *shape)).shape == (2, 7)


@pytest.mark.parametrize(
    ("name", "shape", "takes"),
    [
        ("small", (1, 7, 28), "images of at least 8 by 8 pixels"),
        ("small", (64,), "images of at least 8 by 8 pixels"),
        ("vgg16", (3, 15, 32), "images of at least 16 by 16 pixels"),
        ("vgg16", (64,), "images of at least 16 by 16 pixels"),
        ("resnet50", (64,), "images"),
    ],
)
def test_models_refuse_what_is_no_image_or_too_small(
    name: str, shape: tuple[int, ...], takes: str
) -> None:
    with pytest.raises(SettingError) as refused:
        build(name, shape, 10, seed=0)
    assert str(refused.value) == f"The model {name!r} takes {takes}, not inputs of {shape}."
