from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from adaptcl.units import Kept, UnitMap, cut, submodel, trace


def half(units: UnitMap) -> Kept:
    kept = units.everything()
    for layer in units.layers:
        kept[layer.units.start + 1 : layer.units.stop : 2] = False
    return kept


def test_a_submodel_trains_and_remembers_its_sizes(net: nn.Module, images: Tensor) -> None:
    units = trace(net, images)
    smaller = submodel(net, units, half(units))
    output = smaller(images)
    scores = output if isinstance(output, Tensor) else output["scores"][0]
    scores.sum().backward()
    for module in smaller.modules():
        if isinstance(module, nn.Conv2d):
            assert module.out_channels == module.weight.shape[0]
            assert module.in_channels == module.weight.shape[1] * module.groups
        if isinstance(module, nn.Linear):
            assert (module.out_features, module.in_features) == module.weight.shape
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.num_features == len(module.running_mean)
        if isinstance(module, nn.PReLU):
            assert module.num_parameters == len(module.weight)


def test_the_tensors_of_a_submodel_are_those_of_cut(net: nn.Module, images: Tensor) -> None:
    units = trace(net, images)
    kept = half(units)
    expected = cut(net.state_dict(), units, kept)
    for state in (None, expected):
        built = submodel(net, units, kept, state).state_dict()
        assert list(built) == list(expected)
        assert all(torch.equal(built[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize(
    ("animal", "name", "groups"),
    [("shuffled groups", "b.0", 4), ("grouped convolution", "between.0", 2)],
    indirect=["animal"],
)
def test_groups_get_narrower_or_fewer(
    net: nn.Module, images: Tensor, name: str, groups: int
) -> None:
    units = trace(net, images)
    whole, smaller = (each.get_submodule(name) for each in (net, submodel(net, units, half(units))))
    assert isinstance(whole, nn.Conv2d)
    assert isinstance(smaller, nn.Conv2d)
    assert (whole.groups, smaller.groups) == (4, groups)
    assert smaller.out_channels == whole.out_channels // 2
    assert smaller.in_channels == whole.in_channels // 2


@pytest.mark.parametrize("animal", ["MLP with batch norm"], indirect=True)
def test_a_submodel_shares_no_memory_with_the_model_or_the_state(
    net: nn.Module, images: Tensor
) -> None:
    units = trace(net, images)
    state = net.state_dict()
    smaller = submodel(net, units, units.everything(), state)
    for name, tensor in smaller.state_dict().items():
        assert tensor.data_ptr() != state[name].data_ptr()


@pytest.mark.parametrize("animal", ["MLP with batch norm"], indirect=True)
def test_frozen_parameters_and_training_mode_are_kept(net: nn.Module, images: Tensor) -> None:
    units = trace(net, images)
    first = net.get_submodule("1")
    first.requires_grad_(False)
    net.train().get_submodule("4").eval()
    smaller = submodel(net, units, half(units))
    frozen = {name for name, p in smaller.named_parameters() if not p.requires_grad}
    assert frozen == {"1.weight", "1.bias"}
    assert [m.training for m in smaller.modules()] == [m.training for m in net.modules()]


@pytest.mark.parametrize("animal", ["tied weights"], indirect=True)
def test_tied_weights_stay_tied(net: nn.Module, images: Tensor) -> None:
    units = trace(net, images)
    smaller = submodel(net, units, half(units))
    a, b = smaller.get_parameter("a.weight"), smaller.get_parameter("b.weight")
    assert a is b
    assert a.shape == (3, 3)


@pytest.mark.parametrize("animal", ["grouped convolution"], indirect=True)
def test_a_grouped_convolution_loses_whole_groups(net: nn.Module, images: Tensor) -> None:
    units = trace(net, images)
    grouped = submodel(net, units, half(units)).get_submodule("between.0")
    assert isinstance(grouped, nn.Conv2d)
    assert (grouped.groups, grouped.in_channels, grouped.out_channels) == (2, 4, 6)
