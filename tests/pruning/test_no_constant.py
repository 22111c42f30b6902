from __future__ import annotations

from collections.abc import Callable

import torch

from adaptcl.pruning import ServerView
from adaptcl.pruning.index_orders import Index, NoConstant

Views = Callable[..., ServerView]


def test_it_is_identical_for_all_workers_at_each_pruning(server_view: Views) -> None:
    for pruning in range(5):
        orders = [
            NoConstant().importance(server_view(worker=worker, pruning=pruning))
            for worker in range(3)
        ]
        assert all(torch.equal(order, orders[0]) for order in orders)


def test_it_changes_from_pruning_to_pruning(server_view: Views) -> None:
    orders = {
        tuple(NoConstant().importance(server_view(pruning=pruning)).tolist())
        for pruning in range(10)
    }
    assert len(orders) > 3


def test_it_is_index_order_begun_elsewhere(server_view: Views) -> None:
    straight = Index().importance(server_view())
    for pruning in range(5):
        turned = NoConstant().importance(server_view(pruning=pruning))
        for layer in (slice(0, 4), slice(4, 12)):
            start = int(turned[layer].argmax())
            assert torch.equal(turned[layer].roll(-start), straight[layer])
