from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from adaptcl.units import FIXED, UnitMap, trace
from adaptcl.units.check import checked, without


def claimed(units: UnitMap) -> set[str]:
    return {layer.name for layer in units.layers}


@pytest.mark.parametrize("animal", ["VGG-like"], indirect=True)
@torch.no_grad()
def test_a_layer_whose_slots_are_wrong_is_pinned_and_the_others_stay(
    net: nn.Module, images: Tensor
) -> None:
    """The map of another net, in which one layer's columns are not said to follow."""
    units = trace(net, images)
    follow = tuple(s for s in units.slots if (s.tensor, s.dim) != ("c.weight", 1))
    lying = replace(units, slots=follow)
    assert claimed(checked(net.eval(), lying, images)) == {"a.0", "c"}


@pytest.mark.parametrize("animal", ["VGG-like"], indirect=True)
@torch.no_grad()
def test_a_unit_that_is_cut_but_not_silent_is_found_by_its_output(
    net: nn.Module, images: Tensor
) -> None:
    """Shapes fit, yet the batch norm goes on shifting what should be zero."""
    units = trace(net, images)
    slots = (replace(s, owned=s.owned and s.tensor != "b.1.bias") for s in units.slots)
    lying = replace(units, slots=tuple(slots))
    assert claimed(checked(net.eval(), lying, images)) == {"a.0", "c"}


@pytest.mark.parametrize("animal", ["VGG-like"], indirect=True)
def test_pinning_a_layer_renumbers_the_rest(net: nn.Module, images: Tensor) -> None:
    units = trace(net, images)
    fewer = without(units, {"b.0"})
    assert [(layer.name, layer.units) for layer in fewer.layers] == [
        ("a.0", range(6)),
        ("c", range(6, 16)),
    ]
    assert fewer.batch_norms == ("a.1",)
    assert all((slot.ids != FIXED).any() for slot in fewer.slots)
    slots = {(slot.tensor, slot.dim): slot.ids.tolist() for slot in fewer.slots}
    assert slots["head.weight", 1] == list(range(6, 16))
    assert ("b.1.weight", 0) not in slots
