from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from adaptcl.errors import SettingError
from adaptcl.models import build, find

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
    with pytest.raises(SettingError, match="resnet50, small, vgg16"):
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
