from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from adaptcl.errors import UpdateError
from adaptcl.units import Kept, UnitMap, cut, cut_shapes, recut, trace


def random_part(kept: Kept, units: UnitMap, seed: int) -> Kept:
    """About two thirds of the units, at least one a layer."""
    dice = torch.Generator().manual_seed(seed)
    part = kept & (torch.rand(len(kept), generator=dice) < 0.67)
    for layer in units.layers:
        here = slice(layer.units.start, layer.units.stop)
        if not part[here].any():
            part[layer.units.start + int(kept[here].int().argmax())] = True
    return part


@pytest.mark.parametrize("seed", range(3))
def test_cutting_twice_is_cutting_once(net: nn.Module, images: Tensor, seed: int) -> None:
    units = trace(net, images)
    kept = random_part(units.everything(), units, seed)
    smaller = random_part(kept, units, seed + 10)
    state = net.state_dict()
    twice = recut(cut(state, units, kept), units, kept, smaller)
    once = cut(state, units, smaller)
    assert list(twice) == list(once)
    assert all(torch.equal(twice[name], tensor) for name, tensor in once.items())


def test_cutting_nothing_is_a_copy(net: nn.Module, images: Tensor) -> None:
    units = trace(net, images)
    kept = random_part(units.everything(), units, 0)
    state = cut(net.state_dict(), units, kept)
    same = recut(state, units, kept, kept)
    for name, tensor in state.items():
        assert torch.equal(same[name], tensor)
        assert same[name].data_ptr() != tensor.data_ptr() or tensor.numel() == 0


def test_the_shapes_of_a_sub_model_are_known_without_cutting(
    net: nn.Module, images: Tensor
) -> None:
    units = trace(net, images)
    kept = random_part(units.everything(), units, 1)
    cut_down = cut(net.state_dict(), units, kept)
    assert cut_shapes(units, kept) == {name: tuple(t.shape) for name, t in cut_down.items()}


@pytest.mark.parametrize("animal", ["VGG-like"], indirect=True)
def test_units_that_a_sub_model_lacks_cannot_be_cut_out_of_it(
    net: nn.Module, images: Tensor
) -> None:
    units = trace(net, images)
    kept = units.everything()
    kept[3] = False
    with pytest.raises(UpdateError, match="units that it has"):
        recut(cut(net.state_dict(), units, kept), units, kept, units.everything())


@pytest.mark.parametrize("animal", ["VGG-like"], indirect=True)
def test_a_layer_without_units_is_refused(net: nn.Module, images: Tensor) -> None:
    units = trace(net, images)
    nothing = torch.zeros(units.count, dtype=torch.bool)
    with pytest.raises(UpdateError, match="without any unit"):
        recut(net.state_dict(), units, units.everything(), nothing)
