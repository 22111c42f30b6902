from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from adaptcl.pruning import ServerView
from adaptcl.pruning.cig_bnscalor import CIGBNscalor

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
            # The L2 norms of weights and bias together are 3, 5 and 1.
            self.second.weight.copy_(
                torch.tensor([[2.0, 2.0], [3.0, 0.0], [0.0, -1.0]])[..., None, None]
            )
            self.second.bias.copy_(torch.tensor([1.0, -4.0, 0.0]))  # type: ignore[union-attr]

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


def test_units_without_batch_norm_stand_beside_the_scales_by_their_relative_norm(
    server_view: Views,
) -> None:
    importance = CIGBNscalor().importance(server_view(WithAndWithout(), IMAGE))
    mean_scale = (0.5 + 2.0) / 2
    assert importance[2:].tolist() == pytest.approx(
        [3 / 3 * mean_scale, 5 / 3 * mean_scale, 1 / 3 * mean_scale]
    )


def test_a_model_without_any_batch_norm_is_ordered_by_relative_norm(server_view: Views) -> None:
    model = nn.Sequential(nn.Linear(1, 2, bias=False), nn.ReLU(), nn.Linear(2, 2))
    with torch.no_grad():
        model[0].get_parameter("weight").copy_(torch.tensor([[1.0], [-3.0]]))
    importance = CIGBNscalor().importance(server_view(model, torch.zeros(1, 1)))
    assert importance.tolist() == [0.5, 1.5]


def test_coupled_units_get_the_mean_of_their_scales(server_view: Views) -> None:
    model = TwoNorms()
    with torch.no_grad():
        model.stem_norm.weight.copy_(torch.tensor([1.0, 0.2]))
        model.block_norm.weight.copy_(torch.tensor([-3.0, 0.4]))
    importance = CIGBNscalor().importance(server_view(model, IMAGE))
    assert importance.tolist() == pytest.approx([2.0, 0.3])


def test_it_is_computed_once_for_everybody() -> None:
    assert CIGBNscalor.frozen


def test_it_looks_at_the_global_model_alone(server_view: Views) -> None:
    model = WithAndWithout()
    one = CIGBNscalor().importance(server_view(model, IMAGE, worker=0, pruning=0, seed=0))
    other = CIGBNscalor().importance(server_view(model, IMAGE, worker=3, pruning=2, seed=1))
    assert torch.equal(one, other)


def test_a_layer_of_zeros_is_no_reason_for_what_is_not_a_number(server_view: Views) -> None:
    model = WithAndWithout()
    nn.init.zeros_(model.second.weight)
    nn.init.zeros_(model.second.bias)  # type: ignore[arg-type]
    assert bool(CIGBNscalor().importance(server_view(model, IMAGE)).isfinite().all())
