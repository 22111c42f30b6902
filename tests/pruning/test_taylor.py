from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from adaptcl.pruning import WorkerView
from adaptcl.pruning.activation_orders import Taylor

Views = Callable[..., WorkerView]


def some(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def by_hand(hidden: Tensor, head: nn.Linear, labels: Tensor) -> Tensor:
    """Mean of |activation × gradient| of neurons that a linear head reads, normalised."""
    missed = head(hidden).softmax(1) - nn.functional.one_hot(labels, head.out_features)
    effect: Tensor = (hidden * (missed @ head.weight)).abs().mean(0).detach()
    return effect / effect.square().sum().sqrt()


def test_the_importance_is_the_mean_size_of_activation_times_gradient(worker_view: Views) -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    inputs, labels = some(6, 3), torch.tensor([0, 1, 1, 0, 1, 0])
    importance = Taylor().importance(worker_view(model, inputs, labels))
    expected = by_hand(model[0](inputs), model[1], labels)  # type: ignore[arg-type]
    assert torch.allclose(importance, expected, atol=1e-6)


@pytest.mark.parametrize("batch_size", [1, 4, 5, 100])
def test_it_does_not_depend_on_the_batch_size(worker_view: Views, batch_size: int) -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    inputs, labels = some(4, 3), torch.tensor([0, 1, 1, 0])
    one = Taylor().importance(worker_view(model, inputs, labels, batch_size=4))
    other = Taylor().importance(worker_view(model, inputs, labels, batch_size=batch_size))
    assert torch.allclose(one, other, atol=1e-6)


def test_an_activation_in_place_changes_nothing(worker_view: Views) -> None:
    def model(inplace: bool) -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace), nn.Flatten(), nn.Linear(16, 2)
        )

    inputs = some(6, 1, 4, 4)
    beside, in_place = (
        Taylor().importance(worker_view(model(inplace), inputs)) for inplace in (False, True)
    )
    assert torch.equal(beside, in_place)


def test_the_feature_map_is_taken_after_batch_norm(worker_view: Views) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    with torch.no_grad():
        model[1].get_parameter("bias").copy_(torch.tensor([0.0, 5.0, -2.0, 1.0]))
    model.eval()
    inputs, labels = some(6, 3), torch.tensor([0, 1, 1, 0, 1, 0])
    importance = Taylor().importance(worker_view(model, inputs, labels))
    expected = by_hand(model[:2](inputs), model[2], labels)  # type: ignore[arg-type]
    assert torch.allclose(importance, expected, atol=1e-6)


def test_a_unit_that_nobody_reads_has_no_importance(worker_view: Views) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    with torch.no_grad():
        model[2].get_parameter("weight")[:, 1] = 0
    importance = Taylor().importance(worker_view(model, some(8, 3)))
    assert importance[1] == 0
    assert importance.argmin() == 1


def test_every_layer_has_the_norm_1(worker_view: Views) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    importance = Taylor().importance(worker_view(model, some(8, 3)))
    assert torch.linalg.vector_norm(importance[:4]) == pytest.approx(1)
    assert torch.linalg.vector_norm(importance[4:]) == pytest.approx(1)


def test_what_cannot_be_trained_still_has_an_importance(worker_view: Views) -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    inputs, labels = some(6, 3), torch.tensor([0, 1, 1, 0, 1, 0])
    expected = by_hand(model[0](inputs), model[1], labels)  # type: ignore[arg-type]
    view = worker_view(model, inputs, labels)
    view.model.requires_grad_(False)
    assert torch.allclose(Taylor().importance(view), expected, atol=1e-6)


def test_the_channels_of_one_unit_are_zeroed_together(worker_view: Views, folded: Any) -> None:
    inputs, labels = some(5, 3), torch.tensor([0, 1, 1, 0, 1])
    importance = Taylor().importance(worker_view(folded, inputs, labels))
    expected = by_hand(folded.folded(inputs), folded.head, labels)
    assert torch.allclose(importance, expected, atol=1e-6)
