"""The budget rule with widths rounded to a multiple."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from adaptcl.pruning import fit, grow, prune
from adaptcl.pruning.budget import block_sizes
from adaptcl.units import Kept, Layer, UnitMap, check_kept, parameters, retention, trace


class Residual(nn.Module):
    """Layers of 192, 202 and 90 units; the first is coupled with a second linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(8, 192)
        self.coupled = nn.Linear(192, 192)
        self.middle = nn.Linear(192, 202)
        self.norm = nn.BatchNorm1d(202)
        self.last = nn.Linear(202, 90)
        self.head = nn.Linear(90, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = self.norm(self.middle(x + self.coupled(x).relu())).relu()
        scores: Tensor = self.head(self.last(x).relu())
        return scores


@cache
def model_units() -> UnitMap:
    units = trace(Residual(), torch.zeros(2, 8))
    assert [len(layer.units) for layer in units.layers] == [192, 202, 90]
    assert block_sizes(units, 16).tolist() == [2, 4, 8]
    return units


UNITS = 192 + 202 + 90


@cache
def layer_blocks(multiple: int) -> tuple[tuple[Layer, int], ...]:
    units = model_units()
    return tuple(zip(units.layers, block_sizes(units, multiple).tolist(), strict=True))


@st.composite
def importances(draw: st.DrawFn) -> Tensor:
    """Layers of different levels, as BN scales have, and sometimes many ties."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    importance = torch.rand(UNITS, generator=generator)
    for layer in model_units().layers:
        importance[list(layer.units)] *= draw(st.floats(0.1, 1))
    steps = draw(st.sampled_from([0, 1, 3, 20]))
    return (importance * steps).round() if steps else importance


@st.composite
def any_importances(draw: st.DrawFn) -> Tensor:
    importance = draw(importances())
    for awkward in (torch.nan, torch.inf, -torch.inf):
        importance[draw(st.lists(st.integers(0, UNITS - 1), max_size=5))] = awkward
    return importance


@st.composite
def sub_models(draw: st.DrawFn) -> Kept:
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    kept = torch.zeros(UNITS, dtype=torch.bool)
    for layer in model_units().layers:
        count = draw(st.integers(1, len(layer.units)))
        chosen = torch.randperm(len(layer.units), generator=generator)[:count]
        kept[layer.units.start + chosen] = True
    return kept


multiples = st.sampled_from([1, 2, 3, 4, 5, 8, 16])
shares = st.floats(0, 1)
rates = st.floats(0, 0.99)


def total() -> int:
    return parameters(model_units(), model_units().everything())


def width(kept: Kept, layer: Layer) -> int:
    return int(kept[layer.units.start : layer.units.stop].sum())


def down_to_a_block(kept: Kept, multiple: int) -> bool:
    return all(width(kept, layer) <= block for layer, block in layer_blocks(multiple))


def by_hand(among: Kept, importance: Tensor, budget: float, multiple: int) -> Kept:
    """The rule word for word: one unit after the other goes, widths are rounded up, until it fits.

    Lists and loops only, so that it shares no mistake with the code.
    """
    units = model_units()
    values = [-torch.inf if value != value else value for value in importance.tolist()]
    worst_first = sorted(among.nonzero().flatten().tolist(), key=lambda u: (values[u], -u))
    rows = [[u for u in worst_first if u in layer.units] for layer, _ in layer_blocks(multiple)]
    layer_of = {unit: number for number, row in enumerate(rows) for unit in row}
    wanted = [len(row) for row in rows]
    cuts = [u for u in worst_first if u != rows[layer_of[u]][-1]]
    rounded: list[int] = []
    for cut in (None, *cuts):
        if cut is not None:
            wanted[layer_of[cut]] -= 1
        before, rounded = (
            rounded,
            [
                min(len(row), -(-count // block) * block)
                for row, count, (_, block) in zip(rows, wanted, layer_blocks(multiple), strict=True)
            ],
        )
        if rounded != before:
            left = torch.zeros_like(among)
            for row, count in zip(rows, rounded, strict=True):
                left[row[len(row) - count :]] = True
            if parameters(units, left) <= budget * (1 + 1e-9):
                break
    return left


@pytest.mark.slow
@settings(max_examples=40)
@given(sub_models(), any_importances(), shares, multiples)
def test_fit_follows_the_rule_word_for_word(
    among: Kept, importance: Tensor, share: float, multiple: int
) -> None:
    budget = share * parameters(model_units(), among)
    expected = by_hand(among, importance, budget, multiple)
    assert torch.equal(fit(model_units(), among, importance, budget, multiple), expected)


def one_by_one(among: Kept, importance: Tensor, budget: float) -> Kept:
    """The rule without multiples: the least important unit goes, unless its layer has no other."""
    units, left = model_units(), among.clone()
    for unit in sorted(among.nonzero().flatten().tolist(), key=lambda u: (importance[u], -u)):
        if parameters(units, left) <= budget * (1 + 1e-9):
            break
        layer = next(layer for layer in units.layers if unit in layer.units)
        if width(left, layer) > 1:
            left[unit] = False
    return left


@settings(max_examples=20)
@given(sub_models(), importances(), shares)
def test_a_multiple_of_one_changes_nothing(among: Kept, importance: Tensor, share: float) -> None:
    budget = share * parameters(model_units(), among)
    expected = one_by_one(among, importance, budget)
    assert torch.equal(fit(model_units(), among, importance, budget, 1), expected)
    assert torch.equal(fit(model_units(), among, importance, budget), expected)


@pytest.mark.slow
@given(sub_models(), any_importances(), st.floats(0.001, 0.99), multiples)
def test_pruning_cuts_whole_blocks_until_the_rest_fits_the_budget(
    kept: Kept, importance: Tensor, rate: float, multiple: int
) -> None:
    units = model_units()
    left = prune(units, kept, importance, rate, width_multiple=multiple)
    assert not (left & ~kept).any()
    check_kept(units, left)
    for layer, block in layer_blocks(multiple):
        assert width(left, layer) % block == 0 or width(left, layer) == width(kept, layer)
    budget = (1 - rate) * parameters(units, kept)
    assert down_to_a_block(left, multiple) or parameters(units, left) <= budget * (1 + 1e-9)
    # So the rate learner cannot get stuck: each rate above 0 changes the worker's size.
    assert torch.equal(left, kept) == down_to_a_block(kept, multiple)
    none = prune(units, kept, importance, 0.0, width_multiple=multiple)
    assert torch.equal(none, kept)


@given(sub_models(), importances(), rates, multiples)
def test_no_unit_stays_in_a_layer_that_lost_a_more_important_one(
    kept: Kept, importance: Tensor, rate: float, multiple: int
) -> None:
    left = prune(model_units(), kept, importance, rate, width_multiple=multiple)
    for layer in model_units().layers:
        here = torch.zeros_like(kept)
        here[list(layer.units)] = True
        gone = here & kept & ~left
        if gone.any():
            assert importance[here & left].min() >= importance[gone].max()


@pytest.mark.slow
@given(any_importances(), st.lists(rates, max_size=4), shares, multiples)
def test_pruning_step_by_step_ends_on_the_way_of_pruning_at_once(
    importance: Tensor, steps: list[float], share: float, multiple: int
) -> None:
    units = model_units()
    stepwise = units.everything()
    for rate in steps:
        stepwise = prune(units, stepwise, importance, rate, width_multiple=multiple)
    # There is one sub-model of its size on the way, and it is nested with all others.
    at_once = fit(units, units.everything(), importance, parameters(units, stepwise), multiple)
    assert torch.equal(stepwise, at_once)
    other = fit(units, units.everything(), importance, share * total(), multiple)
    assert not (stepwise & ~other).any() or not (other & ~stepwise).any()


@pytest.mark.slow
@given(any_importances(), rates, st.floats(0.01, 1), multiples)
def test_a_rate_that_leaves_the_least_retention_never_ends_below_it(
    importance: Tensor, first: float, least: float, multiple: int
) -> None:
    units = model_units()
    kept = prune(units, units.everything(), importance, first, least, multiple)
    now = retention(units, kept)
    if now >= least:
        left = prune(units, kept, importance, (now - least) / now, least, multiple)
        assert retention(units, left) >= least * (1 - 1e-9)


@pytest.mark.slow
@given(any_importances(), any_importances(), rates, shares, multiples, sub_models())
def test_growing_never_cuts_fills_whole_blocks_and_fits_the_budget(
    before: Tensor, importance: Tensor, rate: float, share: float, multiple: int, other: Kept
) -> None:
    # The order by which it grows need not be the one by which it was pruned.
    units = model_units()
    kept = prune(units, units.everything(), before, rate, width_multiple=multiple)
    now = parameters(units, kept)
    budget = now + share * (total() - now)
    grown = grow(units, kept, importance, budget, multiple)
    assert not (kept & ~grown).any()
    # Nor does it cut a sub-model of other widths, even if that exceeds the budget.
    assert not (other & ~grow(units, other, importance, budget, multiple)).any()
    assert parameters(units, grown) <= budget * (1 + 1e-9)
    for layer, block in layer_blocks(multiple):
        assert width(grown, layer) % block == 0 or width(grown, layer) == len(layer.units)


@pytest.mark.slow
@given(importances(), rates, multiples)
def test_what_was_pruned_grows_back_unit_by_unit_by_the_same_order(
    importance: Tensor, rate: float, multiple: int
) -> None:
    units = model_units()
    small = prune(units, units.everything(), importance, rate, width_multiple=multiple)
    budget = (1 - rate / 2) * total()
    there = fit(units, units.everything(), importance, budget, multiple)
    assert torch.equal(grow(units, small, importance, budget, multiple), there)
    assert grow(units, small, importance, total(), multiple).all()


def test_all_that_is_coupled_with_a_layer_gets_its_width() -> None:
    units = model_units()
    importance = torch.rand(UNITS, generator=torch.Generator().manual_seed(0))
    left = fit(units, units.everything(), importance, 0.4 * total(), 16)
    widths = {
        name: int(left[slot.ids].sum())
        for name in ("stem.weight", "coupled.weight")
        for slot in units.by_tensor[name]
        if slot.dim == 0
    }
    assert widths["stem.weight"] == widths["coupled.weight"]
    assert widths["stem.weight"] % 2 == 0
    assert widths["stem.weight"] < 192


def test_a_model_without_units_is_left_alone() -> None:
    units = trace(nn.Linear(2, 2), torch.zeros(1, 2))
    nothing = units.everything()
    for multiple in (1, 16):
        assert prune(units, nothing, torch.zeros(0), 0.5, width_multiple=multiple).shape == (0,)
        assert grow(units, nothing, torch.zeros(0), 99, multiple).shape == (0,)
