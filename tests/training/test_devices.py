"""Which trainers a device gets, and what stays of them in the process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import adaptcl
from adaptcl import data, models
from adaptcl.errors import SettingError
from adaptcl.training.devices import (
    find_device,
    gpu_left_as_found,
    side_by_side_on_a_gpu,
)
from adaptcl.units import flops, trace


@pytest.mark.parametrize(
    ("accelerator", "there"), [(None, "only 'cpu'"), (torch.device("cuda"), "'cpu' and 'cuda'")]
)
def test_a_device_that_is_not_there_is_refused_with_those_that_are(
    accelerator: torch.device | None, there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: accelerator is not None)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: accelerator)
    for name in ("gpu", "cuda:99"):
        with pytest.raises(SettingError, match=f"device is '{name}', but .*; it has {there}"):
            find_device("device", name)
    assert find_device("device", "cpu") == torch.device("cpu")


def test_six_of_the_papers_tasks_and_three_of_those_of_the_default_job() -> None:
    model = models.build("small", (1, 28, 28), 10, seed=1)
    units = trace(model, torch.zeros(2, 1, 28, 28))
    assert side_by_side_on_a_gpu(600 * flops(units, units.everything())) == 3
    vgg16 = 3.1e8  # FLOPs of one image of CIFAR
    assert side_by_side_on_a_gpu(2 * 5000 * vgg16) == 6


@pytest.mark.parametrize("before", [(True, False), (False, True)])
@gpu_left_as_found()
def test_a_gpu_multiplies_afterwards_as_it_did_before_even_if_it_failed(
    before: tuple[bool, bool],
) -> None:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    matmul.allow_tf32, cudnn.allow_tf32 = before

    @gpu_left_as_found()
    def fail() -> None:
        matmul.allow_tf32, cudnn.allow_tf32 = before[1], before[0]
        raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            fail()
        assert (matmul.allow_tf32, cudnn.allow_tf32) == before


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("out", [None, "run"])
@gpu_left_as_found()
def test_a_run_on_a_gpu_leaves_nothing_behind_of_how_it_multiplied(
    tmp_path: Path, out: str | None
) -> None:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    matmul.allow_tf32, cudnn.allow_tf32 = False, True
    digits = data.load("digits")
    adaptcl.run(
        models.build("small", (1, 8, 8), 10, seed=1), digits.train, digits.test, device="cuda",
        workers=2, rounds=1, precision="tf32", out=out and tmp_path / out, figures="none",
    )  # fmt: skip
    assert (matmul.allow_tf32, cudnn.allow_tf32) == (False, True)
