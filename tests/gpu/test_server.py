"""The server's part with tensors on a GPU; `make test-gpu` runs these."""

from __future__ import annotations

import math

import pytest
import torch

from adaptcl.finite import first_not_finite
from adaptcl.models import build
from adaptcl.pruning import fit
from adaptcl.strategies.aggregation import Aggregation, AggregationSettings
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
