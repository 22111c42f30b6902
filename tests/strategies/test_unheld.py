from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from adaptcl.strategies import Job
from adaptcl.strategies.aggregation import zero_lost_units
from adaptcl.strategies.fedavg import FedAVG
from adaptcl.strategies.synchronous import SynchronousSettings
from adaptcl.training import Recipe
from adaptcl.units import trace

FOUR_UNITS = trace(
    nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 2, bias=False), nn.Linear(2, 1)),
    torch.zeros(1, 1),
)
EIGHTS = {name: torch.full(shape, 8.0) for name, shape in FOUR_UNITS.shapes.items()}
ONE, OTHER = torch.tensor([True, False] * 2), torch.tensor([False, True] * 2)


def test_by_worker_what_two_units_share_and_nobody_holds_is_delivered_as_zero() -> None:
    found = zero_lost_units(EIGHTS, FOUR_UNITS, [ONE, OTHER], by_worker=True)
    assert found["1.weight"].tolist() == [[8, 0], [0, 8]]
    assert all(torch.equal(found[name], EIGHTS[name]) for name in EIGHTS if name != "1.weight")
    assert EIGHTS["1.weight"].tolist() == [[8, 8], [8, 8]]


def test_by_other_rules_it_is_delivered_as_it_is() -> None:
    found = zero_lost_units(EIGHTS, FOUR_UNITS, [ONE, OTHER], by_worker=False)
    assert all(torch.equal(found[name], EIGHTS[name]) for name in EIGHTS)


def test_what_is_not_trained_is_delivered_as_it_is() -> None:
    frozen = replace(FOUR_UNITS, frozen=frozenset({"1.weight"}))
    assert zero_lost_units(EIGHTS, frozen, [ONE, OTHER], by_worker=True)["1.weight"].eq(8).all()


def test_where_somebody_holds_everything_the_very_model_is_delivered() -> None:
    everything = FOUR_UNITS.everything()
    assert zero_lost_units(EIGHTS, FOUR_UNITS, [ONE, everything, OTHER], by_worker=True) is EIGHTS


@pytest.mark.parametrize("by_worker", [True, False])
def test_a_unit_that_nobody_holds_is_delivered_as_zero(by_worker: bool) -> None:
    found = zero_lost_units(EIGHTS, FOUR_UNITS, [ONE, ONE], by_worker=by_worker)
    assert found["0.weight"].tolist() == [[8], [0]]
    assert found["0.bias"].tolist() == [8, 0]
    assert found["1.weight"][1].tolist() == [0, 0]
    assert found["2.bias"].tolist() == [8]


@pytest.mark.parametrize(
    ("aggregation", "fading", "left"),
    [("by-worker", 0.2, 0), ("by-unit", 1.0, 8), ("by-change", 0.2, 8), ("by-change", 1.0, 0)],
)
def test_a_strategy_keeps_for_itself_what_it_delivers_as_zero(
    aggregation: str, fading: float, left: int
) -> None:
    job = Job(FOUR_UNITS, EIGHTS, workers=2, rounds=3, recipe=Recipe(), seed=1)
    strategy = FedAVG(job, SynchronousSettings(aggregation=aggregation, fading=fading))
    strategy.kept = [ONE, OTHER]
    assert strategy.model()["1.weight"].tolist() == [[8, left], [left, 8]]
    assert strategy.state["1.weight"].eq(8).all()
