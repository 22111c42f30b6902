from __future__ import annotations

from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from adaptcl.pruning import fit, importance_lost, prune
from adaptcl.pruning.budget import achieved_rate, smallest_retention
from adaptcl.units import Kept, UnitMap, check_kept, parameters, retention, trace


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


@pytest.mark.slow
@given(sub_models(), importances | any_importances, rates)
def test_what_stays_fits_the_budget_unless_nothing_more_can_go(
    kept: Kept, importance: Tensor, rate: float
) -> None:
    units = model_units()
    left = prune(units, kept, importance, rate)
    budget = (1 - rate) * parameters(units, kept)
    assert parameters(units, left) <= max(budget * (1 + 1e-9), smallest(kept))
    assert retention(units, left) >= smallest_retention(units)
    assert not (left & ~kept).any()
    check_kept(units, left)


@given(sub_models(), importances, rates)
def test_as_little_goes_as_possible_and_the_least_important_first(
    kept: Kept, importance: Tensor, rate: float
) -> None:
    units = model_units()
    left = prune(units, kept, importance, rate)
    assert 0 <= importance_lost(kept, left, importance) <= 1
    gone = (kept & ~left).nonzero().flatten().tolist()
    if not gone:
        return

    def by_importance(unit: int) -> tuple[float, int]:
        """Of equally important units the one with the highest number goes first."""
        return float(importance[unit]), -unit

    for layer in units.layers:
        # The best unit of each layer stays, whatever its importance is.
        stays = [unit for unit in layer.units if left[unit]]
        stays.remove(max(stays, key=by_importance))
        if stays:
            assert importance[stays].min() >= importance[gone].max()
    left[max(gone, key=by_importance)] = True
    assert parameters(units, left) > (1 - rate) * parameters(units, kept)


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
def test_the_achieved_rate_is_the_rate_or_the_share_that_went(
    kept: Kept, importance: Tensor, rate: float, least: float
) -> None:
    units = model_units()
    left = prune(units, kept, importance, rate, least)
    done = achieved_rate(units, kept, left, rate)
    share = 1 - parameters(units, left) / parameters(units, kept)
    assert done == rate or done == pytest.approx(share)
    assert 0 <= done <= rate
    assert done <= share + 1e-9
    if torch.equal(left, kept):
        assert done == 0


def test_the_smallest_retention_of_a_model_is_reached_by_a_budget_of_nothing() -> None:
    units = model_units()
    for multiple in (1, 2, 16):
        left = fit(units, units.everything(), torch.rand(UNITS), 0.0, multiple)
        assert smallest_retention(units, multiple) == retention(units, left)


def test_the_importance_lost_is_a_share_of_what_the_sub_model_had() -> None:
    importance = torch.tensor([4.0, 3.0, 2.0, 1.0])
    before = torch.tensor([True, True, False, True])
    after = torch.tensor([True, False, False, True])
    assert importance_lost(before, after, importance) == pytest.approx(3 / 8)
    assert importance_lost(before, before, importance) == 0
    assert importance_lost(before, after, torch.zeros(4)) == 0
