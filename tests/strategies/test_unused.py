"""Settings that a strategy is said to have no use for change nothing in a run of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import adaptcl
from adaptcl.errors import AdaptCLWarning
from adaptcl.runs.result import Result
from adaptcl.strategies import STRATEGIES

OTHERWISE = {"beta": 0.5, "aggregation": "by-unit", "fading": 0.7, "strength": 0.8}
CLAIMS = [(name, each) for name, strategy in STRATEGIES.items() for each in strategy.unused]


def images(count: int, seed: int) -> tuple[Tensor, Tensor]:
    randomness = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (count, 1, 6, 6), dtype=torch.uint8, generator=randomness)
    return pixels, torch.arange(count) % 3


def short_run(strategy: str, **settings: Any) -> Result:
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 3)
    )
    job = {"workers": 2, "rounds": 3, "sigma": 3.0, "batch_size": 4}
    if strategy == "adaptcl":
        job |= {"pruning_interval": 1}
    return adaptcl.run(model, images(24, 1), images(9, 2), strategy=strategy, **(job | settings))


@pytest.mark.parametrize(("strategy", "name"), CLAIMS, ids=str)
def test_what_it_has_no_use_for_changes_no_bit(strategy: str, name: str) -> None:
    before = short_run(strategy)
    with pytest.warns(AdaptCLWarning, match=f"{name} has no effect"):
        after = short_run(strategy, **{name: OTHERWISE[name]})
    assert before.summary.virtual_time_s == after.summary.virtual_time_s
    for key, tensor in before.model.state_dict().items():
        assert torch.equal(tensor, after.model.state_dict()[key])


@pytest.mark.parametrize("name", ["beta", "aggregation", "strength"])
def test_the_same_settings_do_change_a_run_of_adaptcl(name: str) -> None:
    before, after = short_run("adaptcl"), short_run("adaptcl", **{name: OTHERWISE[name]})
    assert any(
        not torch.equal(tensor, after.model.state_dict()[key])
        for key, tensor in before.model.state_dict().items()
    )
