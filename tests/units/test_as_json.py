"""The units of a run are its server's, whatever a worker would find in its data."""

from __future__ import annotations

import copy
import json
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from adaptcl import models
from adaptcl.errors import AdaptCLError
from adaptcl.units import UnitMap, trace
from adaptcl.units.as_json import units_from_json, units_to_json


def shared(units: UnitMap, model: nn.Module) -> UnitMap:
    return units_from_json(json.loads(json.dumps(units_to_json(units))), model)


def plain(value: Any) -> Any:
    """Units without tensors, so that they can be compared."""
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return [plain(each) for each in value]
    return (
        {each.name: plain(getattr(value, each.name)) for each in fields(value)}
        if is_dataclass(value)
        else value
    )


@pytest.mark.parametrize("name", ["small", "resnet50"])
def test_a_worker_gets_the_very_same_units(name: str) -> None:
    model = models.build(name, (3, 32, 32), 10, 1)
    units = trace(model, torch.randn(2, 3, 32, 32), models.MODELS[name].fixed)
    there = models.build(name, (3, 32, 32), 10, 2)
    assert plain(shared(units, there)) == plain(units)
    assert len(json.dumps(units_to_json(units))) < 20_000


def test_units_that_a_flatten_repeats_and_powers_of_statistics_are_shared_too() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.Conv2d(6, 6, 3, groups=6), nn.BatchNorm2d(6), nn.Flatten(),
        nn.Linear(6 * 16, 5),
    )  # fmt: skip
    units = trace(model, torch.randn(2, 3, 8, 8))
    assert units.scale_powers
    assert plain(shared(units, copy.deepcopy(model))) == plain(units)


class Attention(nn.Module):
    """Reads the number of its heads from an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = 4
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).reshape(len(x), 5, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        scores: Tensor = self.out(mixed.transpose(1, 2).flatten(2)).mean(1)
        return scores


def test_heads_and_where_their_number_is_stored_are_shared_too() -> None:
    model = Attention()
    units = trace(model, torch.randn(2, 5, 8))
    assert units.heads == {"qkv"}
    assert len(units.sizes) == 1
    assert plain(shared(units, Attention())) == plain(units)
    for size in (["", "qkv", [[0, 1, 4]]], ["", "heads", [[0, 1, 3]]], ["no", "heads", []]):
        with pytest.raises(AdaptCLError, match="do not fit the model"):
            units_from_json({**units_to_json(units), "sizes": [size]}, model)


def test_norms_over_units_are_shared_too() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    units = trace(model, torch.randn(2, 3))
    assert [(each.module, each.dim) for each in units.averages] == [("1", -1)]
    assert plain(shared(units, copy.deepcopy(model))) == plain(units)
    for average in (["9", -1, [[0, 1, 4]]], ["1", 0, [[0, 1, 4]]], ["1", -1, [[0, 0, 2**40]]]):
        with pytest.raises(AdaptCLError, match="do not fit the model"):
            units_from_json({**units_to_json(units), "averages": [average]}, model)


def test_where_layers_have_their_units_is_shared_too() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    units = trace(model, torch.randn(2, 5, 3))
    assert [(e.module, e.dim, e.ids.tolist()) for e in units.outputs] == [("0", -1, [0, 1, 2, 3])]
    for output in (["9", -1, [[0, 1, 4]]], ["0", 0, [[0, 1, 4]]], ["0", -1, [[0, 1, 5]]]):
        with pytest.raises(AdaptCLError, match="do not fit the model"):
            units_from_json({**units_to_json(units), "outputs": [output]}, model)


GOOD = units_to_json(trace(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), torch.randn(2, 3)))


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("layers", [["0", 2**52]]),
        ("layers", [["0", 5]]),
        ("layers", [["0", 1]]),
        ("layers", None),
        ("slots", [["2.weight", 0, 0, True]]),
        ("slots", [["0.weight", 5, 0, True]]),
        ("slots", [["0.weight", 0, 1, True]]),
        ("slots", [["0.weight", 1, 0, True]]),
        ("slots", []),
        ("slots", [["0.weight", 0, 0, True]] * 2),
        ("patterns", [[[0, 1, 2**52]]]),
        ("patterns", [[[1, 1, 4]]]),
        ("patterns", [[[-2, 1, 4]]]),
        ("patterns", [[[0, 7, 4]]]),
        ("patterns", [[[10**30, 1, 4]]]),
        ("patterns", [[]]),
        ("work", [["0.weight", -1]]),
        ("work", [["0.weight", 1.5]]),
        ("scale_powers", {"0.bias": [[10**30, 0, 4]]}),
        ("bn_scales", ["nothing"]),
        ("alike", [3]),
    ],
)
def test_units_that_do_not_fit_the_model_are_refused(part: str, value: Any) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    units_from_json(GOOD, model)
    with pytest.raises(AdaptCLError, match="do not fit the model"):
        units_from_json({**GOOD, part: value}, model)


@pytest.mark.parametrize("value", [None, [], {}, "units"])
def test_what_is_no_units_at_all_is_refused(value: Any) -> None:
    with pytest.raises(AdaptCLError, match="do not fit the model"):
        units_from_json(value, nn.Linear(3, 2))
