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
    ServerView,
    WorkerView,
    server_order,
    worker_order,
)
from adaptcl.pruning.order import filter_slot, units_left
from adaptcl.pruning.worker_orders import HRank
from adaptcl.units import FIXED, Layer, trace

ServerViews = Callable[..., ServerView]
WorkerViews = Callable[..., WorkerView]


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


BY_WORKERS = [order for order in ORDERS.values() if order.computed == "by-workers"]
BY_SERVER = [order for order in ORDERS.values() if order.computed != "by-workers"]


def test_every_unit_gets_a_finite_importance_the_same_each_time(odd_view: WorkerView) -> None:
    for order in BY_WORKERS:
        importance = order.importance(odd_view)
        assert importance.shape == (odd_view.units.count,)
        assert importance.is_floating_point()
        assert bool(importance.isfinite().all())
        assert torch.equal(order.importance(odd_view), importance)
        # HRank cannot tell random filters apart: all their maps have full rank.
        kept = importance[odd_view.kept]
        assert isinstance(order, HRank) or len(torch.unique(kept)) > len(kept) / 2


def test_a_diverged_sub_model_still_gets_an_order(odd_view: WorkerView) -> None:
    with torch.no_grad():
        for parameter in odd_view.model.parameters():
            parameter.fill_(torch.nan)
    for order in BY_WORKERS:
        assert bool(order.importance(odd_view).isfinite().all())


def test_looking_at_a_model_does_not_change_it(odd_view: WorkerView) -> None:
    model = odd_view.model
    model.train()
    model.get_submodule("norm").eval()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = copy.deepcopy(model.state_dict())
    for order in BY_WORKERS:
        order.importance(odd_view)
        after = model.state_dict()
        assert all(torch.equal(after[key], before[key]) for key in before)
        assert all(bool((p.grad == 1).all()) for p in model.parameters() if p.grad is not None)
        assert all(p.grad is not None for p in model.parameters())
        assert [n for n, m in model.named_modules() if not m.training] == ["norm"]
        assert all(not m._forward_hooks for m in model.modules())


def test_server_orders_are_finite_on_any_model(server_view: ServerViews) -> None:
    view = server_view(Odd(), torch.zeros(1, 1, 5, 5))
    for order in BY_SERVER:
        importance = order.importance(view)
        assert importance.shape == (view.units.count,)
        assert bool(importance.isfinite().all())


def test_every_order_says_what_it_is() -> None:
    assert all(order.summary for order in ORDERS.values())


def test_an_order_is_the_servers_or_the_workers() -> None:
    assert server_order("index") is ORDERS["index"]
    assert server_order("taylor") is None
    assert worker_order("taylor") is ORDERS["taylor"]
    with pytest.raises(SettingError, match="computed by the server"):
        worker_order("index")


def test_an_unknown_order_is_refused_with_what_there_is() -> None:
    for lookup in (server_order, worker_order):
        with pytest.raises(SettingError, match=r"'magic'.*cig-bnscalor.*hrank"):
            lookup("magic")


def test_rows_that_are_left_belong_to_their_unit_or_to_none_of_the_layer() -> None:
    ids = torch.tensor([0, 1, 2, FIXED, 3, 4])
    kept = torch.tensor([True, False, True, False, True])
    rows = units_left(ids, Layer("layer", range(2, 5)), kept)
    assert rows.tolist() == [FIXED, 2, FIXED, 4]


def test_the_filters_are_the_weight_of_the_module_and_not_its_bias_or_norm() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1), nn.Flatten())
    units = trace(model.eval(), torch.zeros(2, 1, 3, 3))
    slot = filter_slot(units, units.layers[0])
    assert slot is not None
    assert (slot.tensor, slot.dim) == ("0.weight", 0)
