from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from adaptcl.errors import SettingError
from adaptcl.models import MODELS, build, find
from adaptcl.units import flops, parameters, size_bytes, trace

FACTORY = """
from torch import nn

def net(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1], classes))

def text(shape, classes):
    return "net"

def fails(shape, classes):
    return nn.Linear(shape["channels"], classes)

class Net(nn.Linear):
    def __init__(self, shape, classes):
        super().__init__(shape[0], classes)

def class_given(shape, classes):
    return Net

ready = nn.Linear(1, 1)
number = 3
"""


@pytest.fixture
def custom_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "custom_models_for_test.py").write_text(FACTORY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "custom_models_for_test", raising=False)
    return "custom_models_for_test"


def test_the_seed_alone_decides_the_initial_values() -> None:
    torch.manual_seed(1)
    one = build("small", (1, 28, 28), 10, seed=5).state_dict()
    torch.manual_seed(2)
    same = build("small", (1, 28, 28), 10, seed=5).state_dict()
    other = build("small", (1, 28, 28), 10, seed=6).state_dict()
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["features.0.weight"], other["features.0.weight"])


def test_building_does_not_disturb_the_global_generator() -> None:
    before = torch.get_rng_state()
    build("small", (1, 28, 28), 10, seed=5)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(SettingError, match="resnet18, resnet50, small, vgg16"):
        build("vgg17", (3, 32, 32), 10, seed=0)


def test_a_custom_factory_is_built_the_same_way(custom_module: str) -> None:
    model = build(f"{custom_module}:net", (4, 5), 3, seed=0)
    assert model(torch.randn(2, 4, 5)).shape == (2, 3)
    assert find(f"{custom_module}:net").fixed == ()


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("no_such_package:net", "There is no module no_such_package, where a model"),
        ("subprocess:call", "subprocess is a module of Python's standard library"),
        ("{}:nothing", "has no nothing"),
        ("{}:number", "must be a function or a class"),
        ("{}:text", "gives a str, not an nn.Module.$"),
        ("{}:ready", "is an nn.Module already; name a function or class"),
        ("{}:class_given", r"gives the class Net, .* an instance: Net\(\) instead of Net\.$"),
    ],
)
def test_a_factory_that_is_none_is_an_error(custom_module: str, name: str, complaint: str) -> None:
    with pytest.raises(SettingError, match=complaint):
        build(name.format(custom_module), (4, 5), 3, seed=0)


def test_a_class_is_a_factory_too(custom_module: str) -> None:
    assert build(f"{custom_module}:Net", (4,), 3, seed=0)(torch.randn(2, 4)).shape == (2, 3)


def test_an_error_inside_a_factory_is_shown_as_it_is_with_a_note_of_the_call(
    custom_module: str,
) -> None:
    with pytest.raises(TypeError, match="tuple indices") as failed:
        build(f"{custom_module}:fails", (4, 5), 3, seed=0)
    assert failed.value.__notes__ == [
        f"This happened in {custom_module}:fails, which was called as fails((4, 5), 3)."
    ]


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


def test_each_stage_of_resnet18_shares_its_units_and_each_block_has_some_inside() -> None:
    model = build("resnet18", (3, 32, 32), 10, seed=0)
    units = trace(model, torch.randn(1, 3, 16, 16))
    assert parameters(units, units.everything()) == 11_173_962
    widths = [64, 128, 256, 512]
    assert units.count == sum(widths) + 2 * sum(widths)
    assert {len(layer.units) for layer in units.layers} == set(widths)


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
        ("resnet18", (1, 1, 3)),
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
        ("resnet18", (64,), "images"),
        ("resnet50", (64,), "images"),
    ],
)
def test_models_refuse_what_is_no_image_or_too_small(
    name: str, shape: tuple[int, ...], takes: str
) -> None:
    with pytest.raises(SettingError) as refused:
        build(name, shape, 10, seed=0)
    assert str(refused.value) == f"The model {name!r} takes {takes}, not inputs of {shape}."
