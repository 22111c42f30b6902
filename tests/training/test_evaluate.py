from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from adaptcl.data import Samples
from adaptcl.training.evaluate import accuracy


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
