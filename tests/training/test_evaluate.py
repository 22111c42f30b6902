from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from adaptcl.data import Samples
from adaptcl.models import build
from adaptcl.training.evaluate import Judge, accuracy


class Echo(nn.Module):
    """Its scores are its inputs; while training it would give them the wrong way round."""

    def forward(self, x: Tensor) -> Tensor:
        return -x if self.training else x


@pytest.mark.parametrize("batch_size", [1, 2, 5, 512])
def test_accuracy_is_the_share_of_labels_with_the_highest_score(batch_size: int) -> None:
    scores = torch.eye(3)[torch.tensor([0, 1, 2, 2, 0])]
    samples = Samples(scores, torch.tensor([0, 1, 2, 0, 1]))
    assert accuracy(Echo().train(), samples, batch_size) == 3 / 5


def test_batch_norm_statistics_stay_as_they_are() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    accuracy(model, Samples(torch.randn(9, 4), torch.zeros(9, dtype=torch.int64)))
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())


def test_a_judge_finds_what_a_plain_test_finds() -> None:
    draw = torch.Generator().manual_seed(0)
    images = torch.rand(200, 3, 32, 32, generator=draw)
    samples = Samples(images, torch.randint(10, (200,), generator=draw))
    for name in ("small", "resnet50"):  # with channels last, and without
        model = build(name, (3, 32, 32), 10, seed=1)
        judge = Judge(model, samples)
        for seed in (2, 3):
            state = build(name, (3, 32, 32), 10, seed=seed).state_dict()
            model.load_state_dict(state)
            # A tie may fall either way.
            assert abs(judge.accuracy(state) - accuracy(model, samples)) <= 1 / 200


def test_a_judge_changes_neither_the_model_nor_the_state() -> None:
    model = build("small", (1, 8, 8), 3, seed=1).train()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    Judge(model, Samples(torch.rand(1, 1, 8, 8), torch.zeros(1, dtype=torch.int64))).accuracy(state)
    assert model.training
    assert all(torch.equal(state[name], t) for name, t in model.state_dict().items())
    assert all(t.is_contiguous() for t in model.state_dict().values())
