from __future__ import annotations

import pytest
import torch
from torch import nn

from adaptcl.training.randomness import draws_randomness


@pytest.mark.parametrize(
    ("layer", "expected"),
    [(nn.Dropout(0.5), True), (nn.RReLU(), True), (nn.Dropout(0.0), False), (nn.ReLU(), False)],
)
def test_it_sees_whether_training_draws_random_numbers(layer: nn.Module, expected: bool) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), layer).eval()
    assert draws_randomness(model, torch.randn(2, 3)) is expected


def test_looking_changes_neither_the_model_nor_the_generator() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout()).eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    dice = torch.get_rng_state()
    draws_randomness(model, torch.ones(2, 3))
    assert torch.equal(dice, torch.get_rng_state())
    assert not model.training
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
