"""CIG-BNscalor and its balanced variant."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from adaptcl.pruning import ServerView, prune
from adaptcl.pruning.cig_bnscalor import BalancedBNscalor, CIGBNscalor

Views = Callable[..., ServerView]
IMAGE = torch.zeros(1, 1, 4, 4)


class WithAndWithout(nn.Module):
    """Two units with batch norm, then three without."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 2, 3, padding=1)
        self.norm = nn.BatchNorm2d(2)
        self.second = nn.Conv2d(2, 3, 1)
        self.head = nn.Linear(3, 2)
        with torch.no_grad():
            self.norm.weight.copy_(torch.tensor([0.5, -2.0]))
            # The L2 norms of the columns are 3, 5 and 1.
            self.head.weight.copy_(torch.tensor([[3.0, -3.0, 0.0], [0.0, 4.0, 1.0]]))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.first(x)))
        x = torch.relu(self.second(x)).mean((2, 3))
        return self.head(x)  # type: ignore[no-any-return]


class TwoNorms(nn.Module):
    """A residual block whose sum couples the units of two convolutions, each with its norm."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 2, 1)
        self.stem_norm = nn.BatchNorm2d(2)
        self.block = nn.Conv2d(2, 2, 3, padding=1)
        self.block_norm = nn.BatchNorm2d(2)
        self.head = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem_norm(self.stem(x)))
        x = x + self.block_norm(self.block(x))
        return self.head(x.mean((2, 3)))  # type: ignore[no-any-return]


def test_the_importance_is_the_size_of_the_bn_scale(server_view: Views) -> None:
    importance = CIGBNscalor().importance(server_view(WithAndWithout(), IMAGE))
    assert importance[:2].tolist() == [0.5, 2.0]


def test_units_without_batch_norm_stand_beside_the_scales_by_the_norm_of_what_reads_them(
    server_view: Views,
) -> None:
    importance = CIGBNscalor().importance(server_view(WithAndWithout(), IMAGE))
    mean_scale = (0.5 + 2.0) / 2
    assert importance[2:].tolist() == pytest.approx(
        [3 / 3 * mean_scale, 5 / 3 * mean_scale, 1 / 3 * mean_scale]
    )


def test_a_model_without_any_batch_norm_is_ordered_by_relative_norm(server_view: Views) -> None:
    model = nn.Sequential(nn.Linear(1, 2, bias=False), nn.ReLU(), nn.Linear(2, 1))
    with torch.no_grad():
        model[2].get_parameter("weight").copy_(torch.tensor([[1.0, -3.0]]))
    importance = CIGBNscalor().importance(server_view(model, torch.zeros(1, 1)))
    assert importance.tolist() == [0.5, 1.5]


def test_units_that_no_weight_reads_are_ordered_by_what_they_own(server_view: Views) -> None:
    class Unread(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.only = nn.Linear(1, 2, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(self.only(x)).sum(1)

    model = Unread()
    with torch.no_grad():
        model.only.weight.copy_(torch.tensor([[1.0], [-3.0]]))
    importance = CIGBNscalor().importance(server_view(model, torch.zeros(1, 1)))
    assert importance.tolist() == [0.5, 1.5]


def test_coupled_units_get_the_mean_of_their_scales(server_view: Views) -> None:
    model = TwoNorms()
    with torch.no_grad():
        model.stem_norm.weight.copy_(torch.tensor([1.0, 0.2]))
        model.block_norm.weight.copy_(torch.tensor([-3.0, 0.4]))
    importance = CIGBNscalor().importance(server_view(model, IMAGE))
    assert importance.tolist() == pytest.approx([2.0, 0.3])


def test_cig_bnscalor_is_computed_once_for_everybody() -> None:
    assert CIGBNscalor.computed == "once"


def test_cig_bnscalor_looks_at_the_global_model_alone(server_view: Views) -> None:
    model = WithAndWithout()
    one = CIGBNscalor().importance(server_view(model, IMAGE, worker=0, pruning=0, seed=0))
    other = CIGBNscalor().importance(server_view(model, IMAGE, worker=3, pruning=2, seed=1))
    assert torch.equal(one, other)


def test_a_layer_of_zeros_is_no_reason_for_what_is_not_a_number(server_view: Views) -> None:
    model = WithAndWithout()
    nn.init.zeros_(model.second.weight)
    nn.init.zeros_(model.second.bias)  # type: ignore[arg-type]
    nn.init.zeros_(model.head.weight)
    assert bool(CIGBNscalor().importance(server_view(model, IMAGE)).isfinite().all())


def net(*scales: Sequence[float]) -> nn.Sequential:
    """Convolutions with these BN scales, one after the other."""
    layers: list[nn.Module] = []
    before = 1
    for wanted in scales:
        norm = nn.BatchNorm2d(len(wanted))
        with torch.no_grad():
            norm.weight.copy_(torch.tensor(wanted))
        layers += [nn.Conv2d(before, len(wanted), 3, padding=1, bias=False), norm, nn.ReLU()]
        before = len(wanted)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 2))


def alike(count: int, scale: float) -> list[float]:
    """Scales that hardly differ, as after a few rounds."""
    return [scale * (1 + 0.001 * place) for place in range(count)]


def widths(view: ServerView, importance: Tensor, rate: float) -> list[int]:
    kept = prune(view.units, view.units.everything(), importance, rate)
    return [int(kept[each.units.start : each.units.stop].sum()) for each in view.units.layers]


def test_balanced_layers_of_different_scales_and_widths_shrink_by_the_same_share(
    server_view: Views,
) -> None:
    view = server_view(net(alike(16, 0.9), alike(32, 0.8), alike(64, 0.7)), IMAGE)
    for rate in (0.3, 0.5, 0.8):
        first, second, third = widths(view, BalancedBNscalor().importance(view), rate)
        assert abs(2 * first - second) <= 2
        assert abs(2 * second - third) <= 2


def test_by_the_size_of_the_scales_alone_one_layer_is_emptied_first(server_view: Views) -> None:
    view = server_view(net(alike(16, 0.9), alike(32, 0.8), alike(64, 0.7)), IMAGE)
    assert widths(view, CIGBNscalor().importance(view), 0.5)[:2] == [16, 32]
    assert widths(view, CIGBNscalor().importance(view), 0.8)[2] == 1


def test_within_a_layer_the_smallest_scales_go_first(server_view: Views) -> None:
    view = server_view(net([0.3, -0.9, 0.1, 0.5]), IMAGE)
    assert BalancedBNscalor().importance(view).argsort().tolist() == [2, 0, 3, 1]


def test_units_near_zero_go_first_wherever_they_are(server_view: Views) -> None:
    view = server_view(net(alike(8, 0.5), [*alike(6, 0.9), 0.01, 0.01]), IMAGE)
    assert BalancedBNscalor().importance(view).argsort()[:2].sort().values.tolist() == [14, 15]


def test_balanced_importance_is_the_share_of_the_rest_times_the_width(server_view: Views) -> None:
    importance = BalancedBNscalor().importance(server_view(net([3.0, 1.0, 2.0]), IMAGE))
    assert importance.tolist() == pytest.approx([3 * 9 / 9, 3 * 1 / 14, 3 * 4 / 13])


def test_of_equal_units_the_last_goes_first_as_with_every_order(server_view: Views) -> None:
    view = server_view(net([1.0] * 4), IMAGE)
    assert BalancedBNscalor().importance(view).argsort().tolist() == [3, 2, 1, 0]


def test_a_layer_without_any_scale_left_gets_an_order_all_the_same(server_view: Views) -> None:
    view = server_view(net([0.0] * 4, [1.0, float("nan"), 0.5, float("inf")]), IMAGE)
    importance = BalancedBNscalor().importance(view)
    assert bool(importance.isfinite().all())
    assert importance[:4].tolist() == [0.0] * 4
    assert min(widths(view, importance, 0.9)) >= 1


def test_balanced_units_without_batch_norm_are_compared_by_their_norm(server_view: Views) -> None:
    model = nn.Sequential(nn.Linear(1, 3, bias=False), nn.ReLU(), nn.Linear(3, 1))
    with torch.no_grad():
        model[2].get_parameter("weight").copy_(torch.tensor([[1.0, -3.0, 2.0]]))
    importance = BalancedBNscalor().importance(server_view(model, torch.zeros(1, 1)))
    assert importance.argsort().tolist() == [0, 2, 1]
