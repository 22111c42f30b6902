from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adaptcl.pruning import WorkerView
from adaptcl.pruning.activation_orders import HRank

Views = Callable[..., WorkerView]

RANK_1 = torch.ones(4, 4)
RANK_2 = torch.tensor([[1.0, 0, 0, 0], [0, 1.0, 1.0, 1.0], [0, 1.0, 1.0, 1.0], [0, 1.0, 1.0, 1.0]])
RANK_4 = torch.eye(4)


class Copies(nn.Module):
    """Units that pass the image on, with a factor each."""

    def __init__(self, activation: Callable[[Tensor], Tensor], *factors: float) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, len(factors), 1, bias=False)
        self.head = nn.Linear(len(factors), 2)
        self.activation = activation
        with torch.no_grad():
            self.conv.weight.copy_(torch.tensor(factors).view(-1, 1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.activation(self.conv(x)).mean((2, 3)))  # type: ignore[no-any-return]


def images(*maps: Tensor) -> Tensor:
    return torch.stack(maps)[:, None]


def test_the_importance_is_the_mean_rank_over_the_full_rank(worker_view: Views) -> None:
    view = worker_view(Copies(nn.ReLU(), 1.0, 0.0, 3.0), images(RANK_1, RANK_2, RANK_4))
    expected = (1 + 2 + 4) / 3 / 4
    assert HRank().importance(view).tolist() == pytest.approx([expected, 0.0, expected])


@pytest.mark.parametrize(
    "activation",
    [nn.ReLU(), nn.ReLU(inplace=True), F.relu, torch.relu, torch.relu_, Tensor.relu, nn.ReLU6()],
)
def test_the_map_is_taken_after_the_activation_however_it_is_called(
    worker_view: Views, activation: Callable[[Tensor], Tensor]
) -> None:
    view = worker_view(Copies(activation, 1.0, -1.0), images(RANK_4, RANK_4))
    assert HRank().importance(view).tolist() == [1.0, 0.0]


def test_the_map_is_taken_after_batch_norm_too(worker_view: Views) -> None:
    norm = nn.BatchNorm2d(2)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([1.0, 0.0]))
        norm.bias.copy_(torch.tensor([0.0, -1.0]))
    view = worker_view(Copies(nn.Sequential(norm, nn.ReLU()), 1.0, 1.0), images(RANK_4))
    assert HRank().importance(view).tolist() == [1.0, 0.0]


def test_what_is_done_in_place_after_the_activation_does_not_count(worker_view: Views) -> None:
    def wiped(x: Tensor) -> Tensor:
        return torch.relu(x).mul_(0.0)

    view = worker_view(Copies(wiped, 1.0, 2.0), images(RANK_4))
    assert HRank().importance(view).tolist() == [1.0, 1.0]


def test_a_neuron_counts_by_the_share_of_samples_it_answers_to(worker_view: Views) -> None:
    model = nn.Sequential(nn.Linear(1, 2, bias=False), nn.ReLU(), nn.Linear(2, 2))
    with torch.no_grad():
        model[0].get_parameter("weight").copy_(torch.tensor([[1.0], [-1.0]]))
    view = worker_view(model, torch.tensor([[1.0], [2.0], [3.0], [-1.0]]))
    assert HRank().importance(view).tolist() == [0.75, 0.25]


def test_maps_of_different_sizes_are_comparable(worker_view: Views) -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 2, 1, bias=False),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(2, 2, 1, bias=False),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8, 2),
    )
    nn.init.ones_(model[0].weight)  # type: ignore[arg-type]
    nn.init.ones_(model[3].weight)  # type: ignore[arg-type]
    importance = HRank().importance(worker_view(model, images(RANK_4)))
    assert importance.tolist() == [1.0, 1.0, 1.0, 1.0]
