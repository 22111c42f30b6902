"""The server's part with tensors on a GPU; `make test-gpu` runs these."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from adaptcl.data import Samples
from adaptcl.models import build
from adaptcl.pruning import fit
from adaptcl.runs.variants import Averaging
from adaptcl.strategies.aggregation import Aggregation, AggregationSettings
from adaptcl.strategies.strategy import Closed
from adaptcl.training.divergence import first_not_finite
from adaptcl.training.objectives.evaluation import Judge, score
from adaptcl.units import State, cut, parameters, trace

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def on(device: str, state: State) -> State:
    return {name: tensor.to(device) for name, tensor in state.items()}


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_one_odd_number_among_many_tensors_is_found(odd: float) -> None:
    tensors = {f"t{i}": torch.randn(1000 + i, device="cuda") for i in range(40)}
    assert first_not_finite(tensors) is None
    tensors["t17"][400] = odd
    assert first_not_finite(tensors) == "t17"


def test_numbers_whose_sum_is_infinite_are_finite_all_the_same() -> None:
    assert first_not_finite({"large": torch.full((10,), 3e38, device="cuda")}) is None


def test_merging_whole_and_cut_models_gives_what_a_cpu_gives() -> None:
    whole = build("small", (1, 28, 28), 10, 1).state_dict()
    units = trace(build("small", (1, 28, 28), 10, 1), torch.zeros(2, 1, 28, 28))
    everything = units.everything()
    importance = torch.rand(units.count, generator=torch.Generator().manual_seed(1))
    half = fit(units, everything, importance, 0.5 * parameters(units, everything))
    merged = []
    for device in ("cpu", "cuda"):
        state = on(device, whole)
        total = Aggregation(units, state, AggregationSettings())
        total.add(state, everything, 50)
        total.add(on(device, cut(whole, units, half)), half, 30)
        total.add({name: tensor * 2 for name, tensor in state.items()}, everything, 7)
        merged.append(on("cpu", total.result(state)))
    assert all(torch.allclose(merged[0][name], merged[1][name], rtol=1e-6) for name in whole)


def test_a_mean_from_a_checkpoint_goes_on_where_the_models_are() -> None:
    averaging = Averaging(0.9)
    for number in (1, 2, 3):
        averaging.add({"weight": torch.full((3,), float(number))}, Closed(number, ()))
    resumed = Averaging(0.9)
    resumed.restore(averaging.snapshot())
    mean = resumed.add({"weight": torch.full((3,), 4.0, device="cuda")}, Closed(4, ()))
    expected = averaging.add({"weight": torch.full((3,), 4.0)}, Closed(4, ()))
    assert torch.equal(mean["weight"].cpu(), expected["weight"])


class Flattening(nn.Module):
    """Relies on the usual layout of its images."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4 * 64, 5)

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.last(self.first(images).view(len(images), -1))
        return scores


def test_a_model_that_flattens_by_view_is_tested_all_the_same() -> None:
    model = Flattening().cuda()
    samples = Samples(torch.rand(50, 3, 8, 8), torch.randint(5, (50,))).to(torch.device("cuda"))
    found = Judge(model, samples).test(dict(model.state_dict())).metrics["accuracy"]
    assert abs(found - score(model, samples).metrics["accuracy"]) <= 1 / 50
