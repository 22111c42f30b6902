from __future__ import annotations

import pytest
import torch
from torch import nn

from adaptcl.errors import UpdateError
from adaptcl.units import kept_places, trace

MODEL = nn.Sequential(
    nn.Linear(3, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4), nn.Linear(4, 2)
)
UNITS = trace(MODEL, torch.zeros(2, 3))


def kept(*units: int) -> torch.Tensor:
    flags = torch.zeros(UNITS.count, dtype=torch.bool)
    flags[list(units)] = True
    return flags


def test_a_place_knows_its_indexes_and_where_every_index_went() -> None:
    (rows, columns) = kept_places(UNITS, kept(0, 2, 3, 6, 7))["0.weight"]
    assert columns is None
    assert rows is not None
    assert rows.index.tolist() == [0, 2, 3]
    assert rows.spread.tolist() == [0, 3, 1, 2, 3, 3]
    assert rows.start is None
    assert len(rows) == 3


def test_indexes_without_a_gap_are_a_range() -> None:
    (rows, columns) = kept_places(UNITS, kept(2, 3, 4, 6, 7))["3.weight"]
    assert rows is not None
    assert columns is not None
    assert (rows.start, len(rows)) == (0, 2)
    assert (columns.start, len(columns)) == (2, 3)


def test_places_are_worked_out_once_for_each_sub_model_and_device() -> None:
    once = kept_places(UNITS, kept(0, 1, 6))
    assert kept_places(UNITS, kept(0, 1, 6)) is once
    assert kept_places(UNITS, kept(0, 1, 7)) is not once
    elsewhere = kept_places(UNITS, kept(0, 1, 6), torch.device("meta"))
    (rows, _) = elsewhere["0.weight"]
    assert rows is not None
    assert rows.index.device.type == rows.spread.device.type == "meta"
    assert (rows.start, len(rows)) == (0, 2)


def test_what_is_no_sub_model_is_refused_every_time() -> None:
    for wrong in (torch.ones(3, dtype=torch.bool), torch.ones(10), torch.ones(10)):
        with pytest.raises(UpdateError, match="10 booleans"):
            kept_places(UNITS, wrong)
        with pytest.raises(UpdateError, match="without any unit"):
            kept_places(UNITS, kept(0, 1))
