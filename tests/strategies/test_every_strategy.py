"""What holds for every strategy of the package."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import adaptcl
from adaptcl.errors import AdaptCLWarning
from adaptcl.runs.result import FinishedRun
from adaptcl.strategies import STRATEGIES, Job
from adaptcl.training import Recipe

# Learning ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_it_learns_the_digits(learn: Callable[..., FinishedRun], strategy: str) -> None:
    settings: dict[str, Any] = {"epochs": 1.0} if strategy == "dc-asgd-a-s" else {}
    result = learn(strategy, **settings)
    assert result.summary.accuracy > (0.7 if strategy.startswith("fedavg") else 0.85)
    if strategy == "heterofl":
        assert result.summary.retention[0] < 0.2 < result.summary.retention[-1] == 1.0


# Checkpoints ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        *((name, {}) for name in STRATEGIES if name != "dc-asgd-a-s"),
        ("dc-asgd-a-s", {"dc_learning_rate": 0.02}),
        ("heterofl", {"worker_widths": "matched"}),
        ("fluid", {"straggler_share": 0.4}),
        ("ssp-s", {"staleness_threshold": 0}),
    ],
)
def test_a_checkpoint_file_gives_the_same_continuation(
    with_batch_norm: Callable[..., Job],
    timeline: Callable[..., Any],
    tmp_path: Path,
    name: str,
    settings: dict[str, Any],
) -> None:
    def new() -> Any:
        strategy: Any = STRATEGIES[name]
        return strategy(
            with_batch_norm(4, 5, Recipe(learning_rate=0.1)), strategy.Settings(**settings)
        )

    # Of FedBuff's three changes one waits in the buffer, and SSP's fast workers wait for the slow.
    line = timeline(new(), times=[9, 5, 3, 2]).start().run(rounds=2)
    resumed = line.resumed(new(), tmp_path).run()
    line.run()
    resumed.assert_ends_like(line)
    assert resumed.closed == line.closed


# Settings without effect ------------------------------------------------------------------------

OTHERWISE = {"beta": 0.5, "aggregation": "by-unit", "fading": 0.7, "strength": 0.8}


def images(count: int, seed: int) -> tuple[Tensor, Tensor]:
    randomness = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (count, 1, 6, 6), dtype=torch.uint8, generator=randomness)
    return pixels, torch.arange(count) % 3


def short_run(strategy: str, **settings: Any) -> FinishedRun:
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 3)
    )
    job = {"workers": 2, "rounds": 3, "sigma": 3.0, "batch_size": 4}
    if strategy == "adaptcl":
        job |= {"pruning_interval": 1}
    return adaptcl.run(model, images(24, 1), images(9, 2), strategy=strategy, **(job | settings))


def same_model(one: FinishedRun, other: FinishedRun) -> bool:
    states = one.model.state_dict(), other.model.state_dict()
    return all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [name for name, each in STRATEGIES.items() if each.unused])
def test_settings_that_it_does_not_use_change_no_bit(strategy: str) -> None:
    unused = STRATEGIES[strategy].unused
    before = short_run(strategy)
    with pytest.warns(AdaptCLWarning) as warned:
        after = short_run(strategy, **{name: OTHERWISE[name] for name in unused})
    sentences = [str(each.message) for each in warned]
    assert all(any(f"{name} has no effect" in s for s in sentences) for name in unused)
    assert before.summary.virtual_time_s == after.summary.virtual_time_s
    assert same_model(before, after)


def test_the_same_settings_do_change_a_run_of_adaptcl() -> None:
    before = short_run("adaptcl")
    for name in ("beta", "aggregation", "strength"):
        assert not same_model(before, short_run("adaptcl", **{name: OTHERWISE[name]}))


# Tensors of infinities, such as the mask of causal attention --------------------------------------

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


def causal_run(strategy: str, **settings: Any) -> FinishedRun:
    torch.manual_seed(0)
    job: dict[str, Any] = {"workers": 3, "rounds": 4, "batch_size": 8, "averaging": 0.9}
    job |= {"figures": "none"}
    return adaptcl.run(
        Causal(), sentences(48, 0), sentences(24, 1), strategy=strategy, **(job | settings)
    )


def assert_sound(result: FinishedRun) -> None:
    state = result.model.state_dict()
    assert torch.equal(state.pop("mask"), MASK)
    assert all(bool(tensor.isfinite().all()) for tensor in state.values())


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_mask_stays_as_it_is_whatever_is_merged(strategy: str) -> None:
    assert_sound(causal_run(strategy))


@pytest.mark.slow
def test_no_codec_has_to_send_a_mask() -> None:
    for codec in ("fp16", "int8", "dgc"):
        assert_sound(causal_run("adaptcl", codec=codec, pruning_interval=1))


@pytest.mark.slow
def test_a_resumed_run_has_the_mask_too(tmp_path: Path) -> None:
    whole = causal_run("adaptcl", rounds=6)
    causal_run("adaptcl", rounds=4, out=tmp_path / "run")
    longer = causal_run("adaptcl", rounds=6, out=tmp_path / "run", resume=True)
    assert_sound(longer)
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, longer.model.state_dict()[name])
