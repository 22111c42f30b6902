from __future__ import annotations

import torch
from torch import nn

from adaptcl.pruning.order import filter_slot, units_of_rows
from adaptcl.units import FIXED, Layer, Slot, trace


def test_rows_that_are_left_belong_to_their_unit_or_to_none_of_the_layer() -> None:
    slot = Slot("w", 0, torch.tensor([0, 1, 2, FIXED, 3, 4]), owned=True)
    kept = torch.tensor([True, False, True, False, True])
    rows = units_of_rows(slot, Layer("layer", range(2, 5)), kept)
    assert rows.tolist() == [FIXED, 2, FIXED, 4]


def test_the_filters_are_the_weight_of_the_module_and_not_its_bias_or_norm() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1), nn.Flatten())
    units = trace(model.eval(), torch.zeros(2, 1, 3, 3))
    slot = filter_slot(units, units.layers[0])
    assert slot is not None
    assert (slot.tensor, slot.dim) == ("0.weight", 0)
