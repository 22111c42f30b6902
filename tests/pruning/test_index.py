from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from adaptcl.pruning import ServerView, fit
from adaptcl.pruning.index_orders import Index, from_start
from adaptcl.units import UnitMap, parameters, trace


def layers_of(*widths: int) -> UnitMap:
    sizes = (3, *widths, 2)
    layers = (nn.Linear(read, width) for read, width in pairwise(sizes))
    return trace(nn.Sequential(*layers), torch.zeros(1, 3))


def test_importance_falls_evenly_with_the_relative_position(
    server_view: Callable[..., ServerView],
) -> None:
    importance = Index().importance(server_view())
    assert importance[:4].tolist() == [1, 0.75, 0.5, 0.25]
    assert importance[4:].tolist() == [1, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125]


def test_it_is_identical_for_all_workers_and_constant_over_prunings_and_seeds(
    server_view: Callable[..., ServerView],
) -> None:
    one = Index().importance(server_view())
    other = Index().importance(server_view(worker=5, pruning=3, seed=9))
    assert torch.equal(one, other)


def test_a_start_in_the_middle_counts_up_from_there_and_around_the_end() -> None:
    importance = from_start(layers_of(4), 0.5)
    assert importance.tolist() == [0.5, 0.25, 1, 0.75]


@given(share=st.floats(0.01, 1), start=st.floats(0, 1, exclude_max=True))
def test_all_layers_keep_the_same_share_of_their_units(share: float, start: float) -> None:
    units = layers_of(1, 5, 16)
    importance = from_start(units, start).double()
    for layer in units.layers:
        above = int((importance[list(layer.units)] > 1 - share + 1e-6).sum())
        assert above in (math.ceil(len(layer.units) * share), int(len(layer.units) * share))


@given(first=st.floats(0, 1), second=st.floats(0, 1))
def test_of_two_workers_the_one_that_keeps_less_keeps_a_part_of_what_the_other_keeps(
    first: float, second: float
) -> None:
    units = layers_of(6, 9)
    importance = from_start(units, 0.0)
    whole = units.everything()
    budgets = sorted(share * parameters(units, whole) for share in (first, second))
    small, large = (fit(units, whole, importance, budget) for budget in budgets)
    assert not bool((small & ~large).any())
