"""What all orders have in common, and how they are found by name."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adaptcl.errors import SettingError
from adaptcl.pruning import (
    ORDERS,
    SERVER_ORDERS,
    WORKER_ORDERS,
    ServerView,
    WorkerView,
    server_order,
    worker_order,
)

ServerViews = Callable[..., ServerView]
WorkerViews = Callable[..., WorkerView]

workers_own = pytest.mark.parametrize("name", WORKER_ORDERS)


class Odd(nn.Module):
    """A residual sum, batch norm in part, a layer used twice, and a filter with its own name."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.block = nn.Conv2d(6, 6, 3, padding=1)
        self.kernel = nn.Parameter(torch.randn(5, 6, 1, 1))
        self.dropout = nn.Dropout(0.5)
        self.hidden = nn.Linear(5, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(x)), inplace=True)
        x = x + self.block(x)
        y = self.block(x)
        y += x
        x = F.conv2d(y, self.kernel).relu()
        x = self.hidden(self.dropout(x.mean((2, 3))))
        return self.head(x.relu_())  # type: ignore[no-any-return]


@pytest.fixture
def odd_view(worker_view: WorkerViews) -> WorkerView:
    torch.manual_seed(0)
    model = Odd()
    kept = torch.ones(worker_view(model, torch.zeros(1, 1, 5, 5)).units.count, dtype=torch.bool)
    kept[1] = kept[4] = False
    return worker_view(model, torch.randn(9, 1, 5, 5), torch.arange(9) % 3, kept=kept)


@workers_own
def test_every_unit_gets_a_finite_importance(name: str, odd_view: WorkerView) -> None:
    importance = worker_order(name).importance(odd_view)
    assert importance.shape == (odd_view.units.count,)
    assert importance.is_floating_point()
    assert bool(importance.isfinite().all())


# Not HRank: the maps of random filters are all of full rank.
@pytest.mark.parametrize("name", ["l1", "taylor", "fpgm"])
def test_kept_units_are_told_apart(name: str, odd_view: WorkerView) -> None:
    importance = worker_order(name).importance(odd_view)[odd_view.kept]
    assert len(torch.unique(importance)) > len(importance) / 2


@workers_own
def test_a_diverged_sub_model_still_gets_an_order(name: str, odd_view: WorkerView) -> None:
    with torch.no_grad():
        for parameter in odd_view.model.parameters():
            parameter.fill_(torch.nan)
    assert bool(worker_order(name).importance(odd_view).isfinite().all())


@workers_own
def test_looking_at_a_model_does_not_change_it(name: str, odd_view: WorkerView) -> None:
    model = odd_view.model
    model.train()
    model.get_submodule("norm").eval()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = copy.deepcopy(model.state_dict())
    worker_order(name).importance(odd_view)
    after = model.state_dict()
    assert all(torch.equal(after[key], before[key]) for key in before)
    assert all(bool((p.grad == 1).all()) for p in model.parameters() if p.grad is not None)
    assert all(p.grad is not None for p in model.parameters())
    assert [n for n, m in model.named_modules() if not m.training] == ["norm"]
    assert all(not m._forward_hooks for m in model.modules())


@workers_own
def test_the_same_view_gives_the_same_order(name: str, odd_view: WorkerView) -> None:
    order = worker_order(name)
    assert torch.equal(order.importance(odd_view), order.importance(odd_view))


@pytest.mark.parametrize("name", SERVER_ORDERS)
def test_server_orders_are_finite_on_any_model(name: str, server_view: ServerViews) -> None:
    view = server_view(Odd(), torch.zeros(1, 1, 5, 5))
    importance = SERVER_ORDERS[name].importance(view)
    assert importance.shape == (view.units.count,)
    assert bool(importance.isfinite().all())


def test_every_order_says_what_it_is() -> None:
    assert all(order.summary for order in ORDERS.values())


def test_an_order_is_the_servers_or_the_workers() -> None:
    assert server_order("index") is SERVER_ORDERS["index"]
    assert server_order("taylor") is None
    assert worker_order("taylor") is WORKER_ORDERS["taylor"]
    with pytest.raises(SettingError, match="computed by the server"):
        worker_order("index")


@pytest.mark.parametrize("lookup", [server_order, worker_order])
def test_an_unknown_order_is_refused_with_what_there_is(lookup: Callable[[str], object]) -> None:
    with pytest.raises(SettingError, match=r"'magic'.*cig-bnscalor.*hrank"):
        lookup("magic")
