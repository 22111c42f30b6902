"""Whole runs on a GPU; `make test-gpu` runs these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import adaptcl
from adaptcl.events import Event, RoundFinished
from adaptcl.models import build
from adaptcl.runs.result import FinishedRun

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


class PowerCutError(BaseException):
    pass


def cut_after_three_rounds(event: Event) -> None:
    if isinstance(event, RoundFinished) and event.record.round == 3:
        raise PowerCutError


def images(count: int) -> tuple[Tensor, Tensor]:
    """Noise on which a bright corner shows the label."""
    generator = torch.Generator().manual_seed(count)
    labels = torch.randint(4, (count,), generator=generator)
    pixels = torch.rand(count, 1, 16, 16, generator=generator)
    for place, label in enumerate(labels.tolist()):
        pixels[place, 0, 8 * (label // 2) :, 8 * (label % 2) :] += 1
    return pixels, labels


def go(strategy: str, **settings: Any) -> FinishedRun:
    if strategy == "adaptcl":
        settings["pruning_interval"] = 2
    return adaptcl.run(
        build("small", (1, 16, 16), 4, 1),
        images(240),
        images(120),
        strategy=strategy,
        workers=3,
        rounds=6,
        sigma=4.0,
        device="cuda",
        **settings,
    )


@pytest.mark.parametrize("codec", ["plain", "dgc"])
@pytest.mark.parametrize(
    "strategy", ["fedavg-s", "adaptcl", "fedasync-s", "ssp-s", "fedbuff", "dc-asgd-a-s"]
)
def test_a_run_that_was_cut_off_goes_on_with_its_model_on_the_gpu(
    tmp_path: Path, strategy: str, codec: str
) -> None:
    with pytest.raises(PowerCutError):
        go(strategy, codec=codec, out=tmp_path / "cut", listeners=[cut_after_three_rounds])
    resumed = go(strategy, codec=codec, out=tmp_path / "cut", resume=True)
    whole = go(strategy, codec=codec)
    assert resumed.summary.rounds == whole.summary.rounds
    assert resumed.summary.virtual_time_s == pytest.approx(whole.summary.virtual_time_s)
    assert resumed.summary.accuracy == pytest.approx(whole.summary.accuracy, abs=0.1)


def test_runs_leave_no_memory_behind() -> None:
    go("adaptcl")
    before = reserved()
    for seed in (2, 3, 4):
        go("adaptcl", seed=seed)
    assert reserved() <= before


def reserved() -> int:
    """The bytes that PyTorch holds on the GPU, without those that cuBLAS keeps to work in.

    Those are some MiB for every pair of thread and stream that ever met, and streams are few.
    """
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()
