from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from adaptcl.pruning import WorkerView
from adaptcl.pruning.filter_orders import L1

Views = Callable[..., WorkerView]


def two_layers() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 2))
    with torch.no_grad():
        model[0].get_parameter("weight").copy_(torch.tensor([[1.0, -3.0], [0.0, 0.5], [2.0, 2.0]]))
        model[2].get_parameter("weight").copy_(torch.tensor([[3.0, -3.0, 0.0], [0.0, 0.6, 0.0]]))
    return model


def test_the_importance_is_the_mean_absolute_weight_of_the_filter(worker_view: Views) -> None:
    importance = L1().importance(worker_view(two_layers(), torch.zeros(4, 2)))
    assert importance.tolist() == pytest.approx([2.0, 0.25, 2.0, 2.0, 0.2])


def test_units_of_a_sub_model_keep_their_original_numbers(worker_view: Views) -> None:
    kept = torch.tensor([True, False, True, False, True])
    importance = L1().importance(worker_view(two_layers(), torch.zeros(4, 2), kept=kept))
    # The second layer no longer reads the unit that was cut: 0.6 was its only weight.
    assert importance[kept].tolist() == pytest.approx([2.0, 2.0, 0.0])
    assert bool(importance.isfinite().all())


def test_the_filters_of_a_transposed_convolution_are_its_columns(worker_view: Views) -> None:
    model = nn.Sequential(nn.ConvTranspose2d(1, 2, 1), nn.ReLU(), nn.Conv2d(2, 1, 1), nn.Flatten())
    with torch.no_grad():
        model[0].get_parameter("weight").copy_(torch.tensor([[5.0, -1.0]])[..., None, None])
    importance = L1().importance(worker_view(model, torch.zeros(4, 1, 2, 2)))
    assert importance.tolist() == [5.0, 1.0]


def test_a_unit_of_several_filters_gets_their_mean(worker_view: Views, folded: Any) -> None:
    with torch.no_grad():
        folded.hidden.weight.copy_(torch.tensor([1.0, 2.0, 5.0, 8.0])[:, None].expand(4, 3))
    importance = L1().importance(worker_view(folded, torch.zeros(4, 3)))
    assert importance.tolist() == [3.0, 5.0]
