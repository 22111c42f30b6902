from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from adaptcl.pruning import ServerView, prune
from adaptcl.pruning.cig_bnscalor import BalancedBNscalor, CIGBNscalor

Views = Callable[..., ServerView]
IMAGE = torch.zeros(1, 1, 4, 4)


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


@pytest.mark.parametrize("rate", [0.3, 0.5, 0.8])
def test_layers_of_different_scales_and_widths_shrink_by_the_same_share(
    server_view: Views, rate: float
) -> None:
    view = server_view(net(alike(16, 0.9), alike(32, 0.8), alike(64, 0.7)), IMAGE)
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


def test_the_importance_is_the_share_of_what_is_left_times_the_width(server_view: Views) -> None:
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


def test_units_without_batch_norm_are_compared_by_their_norm(server_view: Views) -> None:
    model = nn.Sequential(nn.Linear(1, 3, bias=False), nn.ReLU(), nn.Linear(3, 2))
    with torch.no_grad():
        model[0].get_parameter("weight").copy_(torch.tensor([[1.0], [-3.0], [2.0]]))
    importance = BalancedBNscalor().importance(server_view(model, torch.zeros(1, 1)))
    assert importance.argsort().tolist() == [0, 2, 1]
