"""L1 and FPGM: orders that look at the weights of filters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from adaptcl.pruning import WorkerView
from adaptcl.pruning.worker_orders import FPGM, L1

Views = Callable[..., WorkerView]


def two_layers() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 2))
    with torch.no_grad():
        model[0].get_parameter("weight").copy_(torch.tensor([[1.0, -3.0], [0.0, 0.5], [2.0, 2.0]]))
        model[2].get_parameter("weight").copy_(torch.tensor([[3.0, -3.0, 0.0], [0.0, 0.6, 0.0]]))
    return model


def test_l1_is_the_mean_absolute_weight_of_the_filter(worker_view: Views) -> None:
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


def line(*weights: list[float]) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(len(weights[0]), len(weights)), nn.Linear(len(weights), 2))
    with torch.no_grad():
        model[0].get_parameter("weight").copy_(torch.tensor(weights))
    return model


def test_fpgm_is_the_summed_distance_to_the_others_over_the_layers_mean(worker_view: Views) -> None:
    # Distances: 0 to 1 and 3 is 4, 1 to 0 and 3 is 3, 3 to 0 and 1 is 5; their mean is 4.
    importance = FPGM().importance(worker_view(line([0.0], [1.0], [3.0]), torch.zeros(4, 1)))
    assert importance.tolist() == pytest.approx([1.0, 0.75, 1.25])


def test_distances_of_filters_are_euclidean(worker_view: Views) -> None:
    model = line([0.0, 0.0], [3.0, 4.0], [0.0, 4.0])
    importance = FPGM().importance(worker_view(model, torch.zeros(4, 2)))
    assert importance.tolist() == pytest.approx([9 / 8, 8 / 8, 7 / 8])


def test_a_large_filter_goes_before_a_small_one_if_others_can_replace_it(
    worker_view: Views,
) -> None:
    model = line([10.0], [10.1], [9.9], [0.1])
    importance = FPGM().importance(worker_view(model, torch.zeros(4, 1)))
    assert int(importance.argmax()) == 3


def test_equal_filters_are_equally_important(worker_view: Views) -> None:
    importance = FPGM().importance(worker_view(line([2.0], [2.0]), torch.zeros(4, 1)))
    assert importance.tolist() == [1.0, 1.0]


def test_only_the_filters_that_are_left_count(worker_view: Views) -> None:
    kept = torch.tensor([True, True, False])
    view = worker_view(line([0.0], [1.0], [100.0]), torch.zeros(4, 1), kept=kept)
    assert FPGM().importance(view)[kept].tolist() == [1.0, 1.0]
