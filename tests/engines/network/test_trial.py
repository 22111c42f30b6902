"""What `forward` does is compared by what comes out, however each machine rounds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("flwr", reason="the network engine needs flwr: pip install 'adaptcl[network]'")

from adaptcl import models
from adaptcl.data.description import SampleForm
from adaptcl.engines.network.invitation import TRIED, MismatchError
from adaptcl.engines.network.trial import refuse_other_outputs, trial_outputs

TABLE = SampleForm((6,), "float32", None, None, ("a", "b", "c"))
IMAGES = SampleForm((3, 32, 32), "uint8", (0.5,) * 3, (0.2,) * 3, tuple("0123456789"))


class Net(nn.Module):
    def __init__(self, activation: Callable[[Tensor], Tensor], dropout: bool = True) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(6, 16), nn.BatchNorm1d(16)
        self.drop, self.last = nn.Dropout(0.5), nn.Linear(16, 3)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.last(self.drop(self.activation(self.norm(self.first(x)))))
        return scores


def test_another_forward_with_the_same_modules_is_refused() -> None:
    server = trial_outputs(Net(torch.relu), TABLE)
    refuse_other_outputs(Net(torch.relu), TABLE, server)
    with pytest.raises(MismatchError, match="its `forward` differs"):
        refuse_other_outputs(Net(torch.tanh), TABLE, server)


def test_other_values_and_other_rounding_make_no_other_model() -> None:
    for name in ("small", "vgg16", "resnet50"):
        one, other = (models.build(name, IMAGES.shape, 10, seed) for seed in (1, 2))
        found = trial_outputs(one, IMAGES)
        assert 0 < len(found) <= TRIED
        refuse_other_outputs(other, IMAGES, [value * 1.001 + 1e-6 for value in found])


@pytest.mark.parametrize("forward", [torch.rand_like, lambda x: x / 0.0, lambda x: 1 / 0])
def test_what_cannot_be_tried_is_not_compared(forward: Callable[[Tensor], Tensor]) -> None:
    assert trial_outputs(Net(forward), TABLE) == ()
    refuse_other_outputs(Net(forward), TABLE, trial_outputs(Net(torch.relu), TABLE))


def test_a_trial_leaves_the_model_as_it_is() -> None:
    model = Net(torch.relu).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    trial_outputs(model, TABLE)
    assert model.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
