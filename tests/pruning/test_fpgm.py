from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from adaptcl.pruning import WorkerView
from adaptcl.pruning.filter_orders import FPGM

Views = Callable[..., WorkerView]


def line(*weights: list[float]) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(len(weights[0]), len(weights)), nn.Linear(len(weights), 2))
    with torch.no_grad():
        model[0].get_parameter("weight").copy_(torch.tensor(weights))
    return model


def test_the_importance_is_the_summed_distance_to_the_others_over_the_layers_mean(
    worker_view: Views,
) -> None:
    # Distances: 0 to 1 and 3 is 4, 1 to 0 and 3 is 3, 3 to 0 and 1 is 5; their mean is 4.
    importance = FPGM().importance(worker_view(line([0.0], [1.0], [3.0]), torch.zeros(4, 1)))
    assert importance.tolist() == pytest.approx([1.0, 0.75, 1.25])


def test_distances_are_euclidean(worker_view: Views) -> None:
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
