"""Index order and the paper's variants of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from adaptcl.pruning import ServerOrder, ServerView, fit
from adaptcl.pruning.index_orders import Index, NoAdjacent, NoConstant, NoIdentical, from_start
from adaptcl.units import UnitMap, parameters, trace

Views = Callable[..., ServerView]
LAYERS = (slice(0, 4), slice(4, 12))


@cache
def layers_of(*widths: int) -> UnitMap:
    sizes = (3, *widths, 2)
    layers = (nn.Linear(read, width) for read, width in pairwise(sizes))
    return trace(nn.Sequential(*layers), torch.zeros(1, 3))


def number_of_orders(order: ServerOrder, views: list[ServerView]) -> int:
    return len({tuple(order.importance(view).tolist()) for view in views})


def begins_elsewhere(turned: Tensor, straight: Tensor) -> bool:
    """Whether each layer has index order, rotated."""
    return all(
        torch.equal(turned[layer].roll(-int(turned[layer].argmax())), straight[layer])
        for layer in LAYERS
    )


def test_importance_falls_evenly_with_the_relative_position(server_view: Views) -> None:
    importance = Index().importance(server_view())
    assert importance[:4].tolist() == [1, 0.75, 0.5, 0.25]
    assert importance[4:].tolist() == [1, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125]


def test_a_start_in_the_middle_counts_up_from_there_and_around_the_end() -> None:
    assert from_start(layers_of(4), 0.5).tolist() == [0.5, 0.25, 1, 0.75]


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


def test_index_is_identical_for_all_workers_and_constant_over_prunings_and_seeds(
    server_view: Views,
) -> None:
    views = [server_view(), server_view(worker=5, pruning=3, seed=9)]
    assert number_of_orders(Index(), views) == 1


def test_no_adjacent_differs_only_between_seeds(server_view: Views) -> None:
    views = [server_view(worker=0, pruning=0), server_view(worker=7, pruning=4)]
    assert number_of_orders(NoAdjacent(), views) == 1
    assert number_of_orders(NoAdjacent(), [server_view(seed=seed) for seed in range(10)]) == 10


def test_no_adjacent_holds_the_values_of_index_in_another_order(server_view: Views) -> None:
    shuffled, straight = (each.importance(server_view()) for each in (NoAdjacent(), Index()))
    assert not torch.equal(shuffled, straight)
    for layer in LAYERS:
        assert torch.equal(shuffled[layer].sort().values, straight[layer].sort().values)


def test_no_adjacent_does_not_cut_neighbours_together(server_view: Views) -> None:
    adjacent = 0
    for seed in range(20):
        first_two = NoAdjacent().importance(server_view(seed=seed))[4:].argsort()[:2]
        adjacent += int((first_two[0] - first_two[1]).abs() == 1)
    assert adjacent < 15


def test_no_constant_changes_from_pruning_to_pruning_for_all_workers(server_view: Views) -> None:
    straight = Index().importance(server_view())
    for pruning in range(5):
        views = [server_view(worker=worker, pruning=pruning) for worker in range(3)]
        assert number_of_orders(NoConstant(), views) == 1
        assert begins_elsewhere(NoConstant().importance(views[0]), straight)
    assert number_of_orders(NoConstant(), [server_view(pruning=n) for n in range(10)]) > 3


def test_no_identical_differs_among_workers_and_is_constant(server_view: Views) -> None:
    straight = Index().importance(server_view())
    for worker in range(5):
        views = [server_view(worker=worker, pruning=pruning) for pruning in range(3)]
        assert number_of_orders(NoIdentical(), views) == 1
        assert begins_elsewhere(NoIdentical().importance(views[0]), straight)
    assert number_of_orders(NoIdentical(), [server_view(worker=n) for n in range(10)]) > 3
    assert number_of_orders(NoIdentical(), [server_view(seed=n) for n in range(10)]) > 3
