from __future__ import annotations

from collections.abc import Callable

import torch

from adaptcl.pruning import ServerView
from adaptcl.pruning.index_orders import Index, NoIdentical

Views = Callable[..., ServerView]


def test_it_is_constant_over_prunings_for_each_worker(server_view: Views) -> None:
    for worker in range(5):
        orders = [
            NoIdentical().importance(server_view(worker=worker, pruning=pruning))
            for pruning in range(3)
        ]
        assert all(torch.equal(order, orders[0]) for order in orders)


def test_it_differs_among_workers(server_view: Views) -> None:
    orders = {
        tuple(NoIdentical().importance(server_view(worker=worker)).tolist()) for worker in range(10)
    }
    assert len(orders) > 3


def test_it_is_index_order_begun_elsewhere(server_view: Views) -> None:
    straight = Index().importance(server_view())
    for worker in range(5):
        turned = NoIdentical().importance(server_view(worker=worker))
        for layer in (slice(0, 4), slice(4, 12)):
            start = int(turned[layer].argmax())
            assert torch.equal(turned[layer].roll(-start), straight[layer])


def test_seeds_give_different_starts(server_view: Views) -> None:
    orders = {
        tuple(NoIdentical().importance(server_view(seed=seed)).tolist()) for seed in range(10)
    }
    assert len(orders) > 3
