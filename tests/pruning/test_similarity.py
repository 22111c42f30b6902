from __future__ import annotations

from itertools import combinations, pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from adaptcl.pruning import mean_similarity
from adaptcl.units import Layer, UnitMap, trace

TWO_LAYERS = UnitMap(
    slots=(),
    layers=(Layer("narrow", range(4)), Layer("wide", range(4, 10))),
    shapes={},
    parameters=frozenset(),
    bn_scales=frozenset(),
    work=(),
)
kept_units = st.lists(st.booleans(), min_size=10, max_size=10).map(torch.tensor)


def kept(*units: int) -> Tensor:
    chosen = torch.zeros(10, dtype=torch.bool)
    chosen[list(units)] = True
    return chosen


def similarity(*pair: Tensor) -> float:
    return mean_similarity(TWO_LAYERS, pair)


def test_similarity_is_the_mean_over_layers_of_intersection_over_union() -> None:
    # {0, 1} and {1, 2}: 1/3; {4, 5, 6} and {4, 5}: 2/3.
    assert similarity(kept(0, 1, 4, 5, 6), kept(1, 2, 4, 5)) == pytest.approx(0.5)


@given(kept_units, kept_units)
def test_similarity_is_the_same_both_ways(one: Tensor, other: Tensor) -> None:
    found = similarity(one, other)
    assert found == similarity(other, one)
    assert 0 <= found <= 1


@given(kept_units)
def test_equal_sub_models_are_alike_and_disjoint_ones_are_not(one: Tensor) -> None:
    assert similarity(one, one) == 1
    assert similarity(kept(0, 4), kept(1, 5)) == 0


@given(st.lists(kept_units, min_size=2, max_size=6))
def test_the_mean_is_over_all_pairs(sub_models: list[Tensor]) -> None:
    pairs = [similarity(a, b) for a, b in combinations(sub_models, 2)]
    assert mean_similarity(TWO_LAYERS, sub_models) == pytest.approx(sum(pairs) / len(pairs))


def test_fewer_than_two_sub_models_are_alike() -> None:
    assert mean_similarity(TWO_LAYERS, []) == 1
    assert mean_similarity(TWO_LAYERS, [kept(0, 4)]) == 1


def test_a_model_without_units_is_always_the_same() -> None:
    units = trace(nn.Linear(2, 2), torch.zeros(1, 2))
    assert mean_similarity(units, [units.everything()] * 3) == 1


def test_a_thousand_workers_are_compared_at_once() -> None:
    generator = torch.Generator().manual_seed(0)
    sub_models = list(torch.rand(1000, 10, generator=generator) < 0.5)
    some = [similarity(a, b) for a, b in pairwise(sub_models)]
    assert mean_similarity(TWO_LAYERS, sub_models) == pytest.approx(sum(some) / 999, abs=0.05)
