from __future__ import annotations

from collections.abc import Callable

import torch

from adaptcl.pruning import ServerView
from adaptcl.pruning.index_orders import Index, NoAdjacent

Views = Callable[..., ServerView]


def test_it_is_identical_for_all_workers_and_constant_over_prunings(server_view: Views) -> None:
    one = NoAdjacent().importance(server_view(worker=0, pruning=0))
    other = NoAdjacent().importance(server_view(worker=7, pruning=4))
    assert torch.equal(one, other)


def test_each_layer_holds_the_values_of_index_in_another_order(server_view: Views) -> None:
    shuffled = NoAdjacent().importance(server_view())
    straight = Index().importance(server_view())
    assert not torch.equal(shuffled, straight)
    for layer in (slice(0, 4), slice(4, 12)):
        assert torch.equal(shuffled[layer].sort().values, straight[layer].sort().values)


def test_seeds_give_different_orders(server_view: Views) -> None:
    orders = {tuple(NoAdjacent().importance(server_view(seed=seed)).tolist()) for seed in range(10)}
    assert len(orders) == 10


def test_neighbours_do_not_go_together(server_view: Views) -> None:
    adjacent = 0
    for seed in range(20):
        first_two = NoAdjacent().importance(server_view(seed=seed))[4:].argsort()[:2]
        adjacent += int((first_two[0] - first_two[1]).abs() == 1)
    assert adjacent < 15
