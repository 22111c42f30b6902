"""Models with a tensor of infinities, such as the mask of causal attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import adaptcl
from adaptcl.runs.result import Result
from adaptcl.strategies import STRATEGIES

MASK = torch.full((5, 5), -torch.inf).triu(1)


class Causal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 8)
        self.project = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 8))
        self.register_buffer("mask", MASK.clone())
        self.out = nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        read = self.words(tokens)
        mask: Tensor = self.get_buffer("mask")
        attention = torch.softmax(read @ read.transpose(1, 2) + mask, dim=-1)
        scores: Tensor = self.out(self.project(attention @ read)[:, -1])
        return scores


def sentences(count: int, seed: int) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(0, 11, (count, 5), generator=torch.Generator().manual_seed(seed))
    return tokens, tokens[:, -1] % 3


def short_run(strategy: str, **settings: Any) -> Result:
    torch.manual_seed(0)
    job: dict[str, Any] = {"workers": 3, "rounds": 4, "batch_size": 8, "averaging": 0.9}
    return adaptcl.run(
        Causal(), sentences(48, 0), sentences(24, 1), strategy=strategy, **(job | settings)
    )


def assert_sound(result: Result) -> None:
    state = result.model.state_dict()
    assert torch.equal(state.pop("mask"), MASK)
    assert all(bool(tensor.isfinite().all()) for tensor in state.values())


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_it_stays_as_it_is_whatever_is_merged(strategy: str) -> None:
    assert_sound(short_run(strategy))


@pytest.mark.parametrize("codec", ["fp16", "int8", "dgc"])
def test_no_codec_has_to_bring_it(codec: str) -> None:
    assert_sound(short_run("adaptcl", codec=codec, pruning_interval=1))


def test_a_run_that_goes_on_has_it_too(tmp_path: Path) -> None:
    whole = short_run("adaptcl", rounds=6)
    short_run("adaptcl", rounds=4, out=tmp_path / "run")
    longer = short_run("adaptcl", rounds=6, out=tmp_path / "run", resume=True)
    assert_sound(longer)
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, longer.model.state_dict()[name])
