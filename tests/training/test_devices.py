"""Which trainers a device gets, and what stays of them in the process."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import adaptcl
from adaptcl import data, models
from adaptcl.errors import SettingError
from adaptcl.training.devices import (
    find_device,
    gpu_left_as_found,
    keep_freed_memory,
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


MEASURE = """
import resource, threading, torch
from adaptcl.training.devices import keep_freed_memory
def steps(count):
    for _ in range(count):
        tensors = [torch.zeros(2**21) for _ in range(8)]
def measure():
    torch.set_num_threads(1)
    steps(3)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    steps(10)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
for keep in (False, True):
    if keep:
        assert keep_freed_memory()
    thread = threading.Thread(target=measure)
    thread.start()
    thread.join()
"""
"""How often ten steps of a thread, of 64 MiB each, wait for new memory: before and after."""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is an option of glibc")
def test_memory_is_there_for_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    done = subprocess.run(
        [sys.executable, "-c", MEASURE], check=True, capture_output=True, text=True
    )
    before, after = map(int, done.stdout.split())
    assert after < 0.8 * before  # how much less depends on the kernel's page sizes at the moment


def test_what_the_user_has_told_glibc_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "100000")
    assert not keep_freed_memory()
