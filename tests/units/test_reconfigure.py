from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from adaptcl.units import Kept, UnitMap, cut, cut_shapes, recut, submodel, trace, zero


def half(units: UnitMap) -> Kept:
    kept = units.everything()
    for layer in units.layers:
        kept[layer.units.start + 1 : layer.units.stop : 2] = False
    return kept


def some_units(units: UnitMap, seed: int) -> Kept:
    generator = torch.Generator().manual_seed(seed)
    kept = torch.rand(units.count, generator=generator) < 0.6
    for layer in units.layers:
        kept[layer.units.start + seed % len(layer.units)] = True
    return kept


def randomised(model: nn.Module) -> nn.Module:
    """A copy without zeros and ones, which could hide a wrong cut."""
    model, generator = copy.deepcopy(model), torch.Generator().manual_seed(3)
    for tensor in model.state_dict().values():
        if tensor.is_floating_point() and tensor.dim() <= 1:
            tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.3)
    return model


@pytest.mark.slow
@torch.no_grad()
def test_in_every_net_cutting_units_equals_zeroing_them(zoo: Mapping[str, Any]) -> None:
    for each in zoo.values():
        net, units = randomised(each.net), each.units
        for seed in range(3):
            kept = some_units(units, seed)
            zeroed = submodel(net, units, units.everything(), zero(net.state_dict(), units, kept))
            torch.testing.assert_close(
                submodel(net, units, kept)(each.images),
                zeroed(each.images),
                rtol=1e-4,
                atol=1e-5,
                msg=f"{each}: {{}}".format,
            )


def test_every_submodel_trains_and_knows_its_sizes(zoo: Mapping[str, Any]) -> None:
    for each in zoo.values():
        smaller = submodel(each.net, each.units, half(each.units)).train()
        output = smaller(each.images)
        scores = output if isinstance(output, Tensor) else output["scores"][0]
        scores.sum().backward()
        check_sizes(smaller)


def check_sizes(smaller: nn.Module) -> None:
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


def equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return list(one) == list(other) and all(torch.equal(one[n], other[n]) for n in other)


def test_building_cutting_and_cutting_twice_give_the_same_tensors(zoo: Mapping[str, Any]) -> None:
    for each in zoo.values():
        units, state = each.units, each.net.state_dict()
        kept = half(units)
        larger = kept | some_units(units, 1)
        expected = cut(state, units, kept)
        assert {name: tuple(t.shape) for name, t in expected.items()} == cut_shapes(units, kept)
        assert equal(submodel(each.net, units, kept).state_dict(), expected)
        assert equal(submodel(each.net, units, kept, expected).state_dict(), expected)
        assert equal(recut(cut(state, units, larger), units, larger, kept), expected)


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
