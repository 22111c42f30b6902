"""How much weight holds each element of the model, and what becomes of what nobody holds."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from adaptcl.strategies import Job
from adaptcl.strategies import aggregation as module
from adaptcl.strategies.aggregation import Holders, zero_missing_units
from adaptcl.strategies.synchronous import FedAVG, SynchronousSettings
from adaptcl.training import Recipe
from adaptcl.units import Kept, cut, put_back, trace

MODEL = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4), nn.Linear(4, 2))
UNITS = trace(MODEL, torch.zeros(1, 2))
CPU = torch.device("cpu")

kept_units = st.lists(st.booleans(), min_size=7, max_size=7).map(torch.tensor)


def with_a_unit_a_layer(kept: Kept) -> Kept:
    kept = kept.clone()
    for layer in UNITS.layers:
        kept[layer.units.start] = True
    return kept


def one_by_one(held: list[tuple[Kept, int]]) -> dict[str, Tensor]:
    """The weights as anyone would count them: ones put back at the places of each sub-model."""
    totals = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in UNITS.shapes.items()}
    for kept, weight in held:
        ones = {name: torch.ones(shape) for name, shape in UNITS.shapes.items()}
        mine = {name: torch.zeros_like(total) for name, total in totals.items()}
        put_back(cut(ones, UNITS, kept), UNITS, kept, mine)
        for name, total in totals.items():
            total += weight * mine[name]
    return totals


@pytest.mark.slow
@settings(deadline=None)
@given(
    st.lists(st.tuples(kept_units.map(with_a_unit_a_layer), st.integers(1, 9999)), max_size=90),
    st.sampled_from([1, 3, 64]),
)
def test_weights_are_those_of_counting_one_by_one(
    held: list[tuple[Kept, int]], at_a_time: int
) -> None:
    holders = Holders(UNITS, CPU)
    with pytest.MonkeyPatch.context() as patch:
        # This model has no more than 32 different sub-models.
        patch.setattr(module, "_AT_A_TIME", at_a_time)
        for kept, weight in held:
            holders.add(kept, weight)
        weights = holders.weights()
    everybody = float(sum(weight for _, weight in held))
    for name, expected in one_by_one(held).items():
        found = weights.get(name, torch.tensor(everybody, dtype=torch.float64))
        assert torch.equal(found.expand_as(expected), expected)
    assert holders.everything_is_held == any(bool(kept.all()) for kept, _ in held)


# What nobody holds ------------------------------------------------------------------------------

FOUR_UNITS = trace(
    nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 2, bias=False), nn.Linear(2, 1)), torch.zeros(1, 1)
)
EIGHTS = {name: torch.full(shape, 8.0) for name, shape in FOUR_UNITS.shapes.items()}
ONE, OTHER = torch.tensor([True, False] * 2), torch.tensor([False, True] * 2)


def test_by_worker_what_two_units_share_and_nobody_holds_is_delivered_as_zero() -> None:
    found = zero_missing_units(EIGHTS, FOUR_UNITS, [ONE, OTHER], counts_as_zero=True)
    assert found["1.weight"].tolist() == [[8, 0], [0, 8]]
    assert all(torch.equal(found[name], EIGHTS[name]) for name in EIGHTS if name != "1.weight")
    assert EIGHTS["1.weight"].tolist() == [[8, 8], [8, 8]]


def test_what_is_not_trained_is_delivered_as_it_is() -> None:
    frozen = replace(FOUR_UNITS, frozen=frozenset({"1.weight"}))
    assert (
        zero_missing_units(EIGHTS, frozen, [ONE, OTHER], counts_as_zero=True)["1.weight"]
        .eq(8)
        .all()
    )


def test_where_somebody_holds_everything_the_very_model_is_delivered() -> None:
    everything = FOUR_UNITS.everything()
    assert (
        zero_missing_units(EIGHTS, FOUR_UNITS, [ONE, everything, OTHER], counts_as_zero=True)
        is EIGHTS
    )


@pytest.mark.parametrize("counts_as_zero", [True, False])
def test_a_unit_that_nobody_holds_is_delivered_as_zero(counts_as_zero: bool) -> None:
    found = zero_missing_units(EIGHTS, FOUR_UNITS, [ONE, ONE], counts_as_zero=counts_as_zero)
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
