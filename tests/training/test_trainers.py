"""How many workers train side by side on a GPU, by what there is to do."""

from __future__ import annotations

import pytest
import torch

from adaptcl import models
from adaptcl.training.trainers import side_by_side_on_a_gpu
from adaptcl.units import flops, trace


@pytest.mark.parametrize(
    ("name", "shape", "samples", "expected"),
    [("vgg16", (3, 32, 32), 2 * 5000, 6), ("small", (1, 28, 28), 600, 3)],
)
def test_six_of_the_papers_tasks_and_three_of_those_of_the_default_job(
    name: str, shape: tuple[int, int, int], samples: int, expected: int
) -> None:
    model = models.build(name, shape, 10, seed=1)
    units = trace(model, torch.zeros(2, *shape))
    assert side_by_side_on_a_gpu(samples * flops(units, units.everything())) == expected
