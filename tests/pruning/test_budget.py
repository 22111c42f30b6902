from __future__ import annotations

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from adaptcl.pruning import fit, importance_lost, prune
from adaptcl.pruning.budget import carried_out, smallest_retention
from adaptcl.units import Kept, UnitMap, check_kept, parameters, retention, trace

"""A busy machine may take its time."""


@cache
def model_units() -> UnitMap:
    """Three layers of 4, 6 and 5 units; a unit costs more in the middle than at the ends."""
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(),
        nn.Linear(24, 5), nn.ReLU(), nn.Linear(5, 2),
    )  # fmt: skip
    return trace(model, torch.zeros(2, 1, 2, 2))


UNITS = 15
awkward = st.floats(allow_nan=True, allow_infinity=True, width=32)
few_values = st.sampled_from([0.0, 1.0, 2.0])
importances = st.lists(st.floats(0, 1) | few_values, min_size=UNITS, max_size=UNITS).map(
    torch.tensor
)
any_importances = st.lists(awkward, min_size=UNITS, max_size=UNITS).map(torch.tensor)
rates = st.floats(0, 0.99)


@st.composite
def sub_models(draw: st.DrawFn) -> Kept:
    kept = torch.tensor(draw(st.lists(st.booleans(), min_size=UNITS, max_size=UNITS)))
    for layer in model_units().layers:
        if not kept[layer.units.start : layer.units.stop].any():
            kept[draw(st.sampled_from(layer.units))] = True
    return kept


def smallest(kept: Kept) -> int:
    """Parameters of the cheapest sub-model of `kept`: one unit a layer."""
    one_each = torch.zeros_like(kept)
    for layer in model_units().layers:
        one_each[layer.units.start + int(kept[layer.units.start :].int().argmax())] = True
    return parameters(model_units(), one_each)


@given(sub_models(), importances | any_importances, rates)
def test_what_stays_fits_the_budget_unless_nothing_more_can_go(
    kept: Kept, importance: Tensor, rate: float
) -> None:
    units = model_units()
    left = prune(units, kept, importance, rate)
    budget = (1 - rate) * parameters(units, kept)
    assert parameters(units, left) <= max(budget * (1 + 1e-9), smallest(kept))


@given(sub_models(), importances | any_importances, rates)
def test_only_units_that_were_there_stay_and_every_layer_keeps_one(
    kept: Kept, importance: Tensor, rate: float
) -> None:
    left = prune(model_units(), kept, importance, rate)
    assert not (left & ~kept).any()
    check_kept(model_units(), left)


@given(sub_models(), importances, rates)
def test_one_unit_more_would_be_too_much(kept: Kept, importance: Tensor, rate: float) -> None:
    units = model_units()
    left = prune(units, kept, importance, rate)
    gone = (kept & ~left).nonzero().flatten()
    if len(gone):
        # Of equally important units the one with the highest number went first.
        last = max(gone.tolist(), key=lambda unit: (float(importance[unit]), -unit))
        left[last] = True
        assert parameters(units, left) > (1 - rate) * parameters(units, kept)


@given(sub_models(), importances, rates)
def test_what_goes_is_less_important_than_what_stays(
    kept: Kept, importance: Tensor, rate: float
) -> None:
    units = model_units()
    left = prune(units, kept, importance, rate)
    gone = kept & ~left
    for layer in units.layers:
        # The best unit of each layer stays whatever it is worth.
        here = torch.zeros_like(kept)
        here[layer.units.start : layer.units.stop] = True
        others = (left & here).nonzero().flatten().tolist()
        best = max(others, key=lambda unit: (float(importance[unit]), -unit))
        others.remove(best)
        if others and gone.any():
            assert importance[others].min() >= importance[gone].max()


@given(importances | any_importances, st.floats(0, 1), st.floats(0, 1))
def test_of_two_budgets_the_smaller_sub_model_is_inside_the_larger(
    importance: Tensor, one: float, other: float
) -> None:
    units = model_units()
    whole = units.everything()
    total = parameters(units, whole)
    small = fit(units, whole, importance, min(one, other) * total)
    large = fit(units, whole, importance, max(one, other) * total)
    assert not (small & ~large).any()


@given(importances | any_importances, st.lists(rates, max_size=4), st.lists(rates, max_size=4))
def test_pruning_step_by_step_by_one_order_stays_nested(
    importance: Tensor, ones: list[float], others: list[float]
) -> None:
    units = model_units()
    ends = []
    for steps in (ones, others):
        kept = units.everything()
        for rate in steps:
            kept = prune(units, kept, importance, rate)
        ends.append(kept)
    small, large = sorted(ends, key=lambda kept: int(kept.sum()))
    assert not (small & ~large).any()


@given(sub_models(), importances | any_importances)
def test_a_rate_of_zero_keeps_everything(kept: Kept, importance: Tensor) -> None:
    assert torch.equal(prune(model_units(), kept, importance, 0.0), kept)


@given(sub_models(), importances | any_importances)
def test_no_budget_leaves_the_most_important_unit_of_every_layer(
    kept: Kept, importance: Tensor
) -> None:
    left = fit(model_units(), kept, importance, 0)
    for layer in model_units().layers:
        assert int(left[layer.units.start : layer.units.stop].sum()) == 1


def test_of_equally_important_units_the_highest_number_goes_first() -> None:
    units = model_units()
    one_less = fit(
        units, units.everything(), torch.ones(15), parameters(units, units.everything()) - 1
    )
    assert (~one_less).nonzero().flatten().tolist() == [14]
    least = fit(units, units.everything(), torch.ones(15), 0)
    assert least.nonzero().flatten().tolist() == [0, 4, 10]


def test_an_importance_that_is_no_number_goes_first() -> None:
    units = model_units()
    importance = torch.ones(15)
    importance[7], importance[8] = torch.nan, 0.0
    budget = parameters(units, units.everything()) - 1
    left = fit(units, units.everything(), importance, budget)
    assert (~left).nonzero().flatten().tolist() == [7]


@settings(max_examples=300)
@given(sub_models())
def test_a_budget_computed_from_retentions_is_not_missed_by_a_rounding_error(kept: Kept) -> None:
    # Growing back to the whole model: the rate (γ − 1)/γ of a sub-model with retention γ.
    units = model_units()
    now = retention(units, kept)
    budget = (1 - (now - 1) / now) * parameters(units, kept)
    assert fit(units, units.everything(), torch.rand(15), budget).all()


@given(sub_models(), importances, rates, st.floats(0, 1), st.sampled_from([1, 2]))
def test_the_smallest_retention_holds_however_much_is_asked(
    kept: Kept, importance: Tensor, rate: float, least: float, multiple: int
) -> None:
    units = model_units()
    left = prune(units, kept, importance, rate, least, multiple)
    assert retention(units, left) >= min(least, retention(units, kept))
    free = prune(units, kept, importance, rate, 0.0, multiple)
    assert not (free & ~left).any()
    if retention(units, free) >= least:
        assert torch.equal(left, free)


@given(sub_models(), importances, rates, st.floats(0, 1))
def test_what_is_carried_out_is_the_rate_or_the_share_that_went(
    kept: Kept, importance: Tensor, rate: float, least: float
) -> None:
    units = model_units()
    left = prune(units, kept, importance, rate, least)
    done = carried_out(units, kept, left, rate)
    share = 1 - parameters(units, left) / parameters(units, kept)
    assert done == rate or done == pytest.approx(share)
    assert 0 <= done <= rate
    assert done <= share + 1e-9
    if torch.equal(left, kept):
        assert done == 0


@given(sub_models(), importances, rates)
def test_nothing_gets_below_the_smallest_retention_of_a_model(
    kept: Kept, importance: Tensor, rate: float
) -> None:
    units = model_units()
    assert retention(units, prune(units, kept, importance, rate)) >= smallest_retention(units)


@pytest.mark.parametrize("multiple", [1, 2, 16])
def test_the_smallest_retention_of_a_model_is_reached_by_a_budget_of_nothing(multiple: int) -> None:
    units = model_units()
    left = fit(units, units.everything(), torch.rand(UNITS), 0.0, multiple)
    assert smallest_retention(units, multiple) == retention(units, left)


def test_the_importance_lost_is_a_share_of_what_the_sub_model_had() -> None:
    importance = torch.tensor([4.0, 3.0, 2.0, 1.0])
    before = torch.tensor([True, True, False, True])
    after = torch.tensor([True, False, False, True])
    assert importance_lost(before, after, importance) == pytest.approx(3 / 8)
    assert importance_lost(before, before, importance) == 0
    assert importance_lost(before, after, torch.zeros(4)) == 0


@given(sub_models(), importances, rates)
def test_the_importance_lost_is_between_nothing_and_all(
    kept: Kept, importance: Tensor, rate: float
) -> None:
    lost = importance_lost(kept, prune(model_units(), kept, importance, rate), importance)
    assert 0 <= lost <= 1
