from __future__ import annotations

import pytest
import torch

from adaptcl.errors import SettingError
from adaptcl.models import MODELS, build
from adaptcl.units import parameters, trace

IMAGE = torch.randn(1, 3, 16, 16)


def test_the_paper_leaves_the_inner_convolutions_of_each_block_to_be_cut() -> None:
    model = build("resnet50", (3, 32, 32), 10, seed=0)
    units = trace(model, IMAGE, MODELS["resnet50"].fixed)
    assert parameters(units, units.everything()) == 23_520_842
    assert units.count == sum(2 * n * w for n, w in ((3, 64), (4, 128), (6, 256), (3, 512)))
    assert {layer.name.rpartition(".")[2] for layer in units.layers} == {"conv1", "conv2"}
    assert "conv1" not in {layer.name for layer in units.layers}


def test_without_the_papers_patterns_each_stage_shares_one_set_of_units() -> None:
    units = trace(build("resnet50", (3, 32, 32), 10, seed=0), IMAGE)
    widths = {layer.name: len(layer.units) for layer in units.layers}
    assert units.count == 7552 + 64 + 256 + 512 + 1024 + 2048
    assert [widths[f"layer{n}.0.conv3"] for n in (1, 2, 3, 4)] == [256, 512, 1024, 2048]
    assert "layer1.1.conv3" not in widths


def test_resnet50_takes_images_of_any_size_and_nothing_else() -> None:
    model = build("resnet50", (1, 1, 3), 10, seed=0)
    assert model(torch.randn(2, 1, 1, 3)).shape == (2, 10)
    with pytest.raises(SettingError, match=r"takes images, not inputs of \(64,\)\.$"):
        build("resnet50", (64,), 10, seed=0)
