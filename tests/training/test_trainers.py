"""How many workers train side by side on a GPU, and how it multiplies when they are done."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import adaptcl
from adaptcl import data, models
from adaptcl.training.devices import gpu_left_as_found, side_by_side_on_a_gpu
from adaptcl.units import flops, trace


@pytest.mark.parametrize(
    ("name", "shape", "samples", "expected"),
    [("vgg16", (3, 32, 32), 2 * 5000, 6), ("small", (1, 28, 28), 600, 3)],
)
def test_six_of_the_papers_tasks_and_three_of_those_of_the_default_job(
    name: str, shape: tuple[int, int, int], samples: int, expected: int
) -> None:
    model = models.build(name, shape, 10, seed=1)
    units = trace(model, torch.zeros(2, *shape))
    assert side_by_side_on_a_gpu(samples * flops(units, units.everything())) == expected


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
        workers=2, rounds=1, precision="tf32", out=out and tmp_path / out,
    )  # fmt: skip
    assert (matmul.allow_tf32, cudnn.allow_tf32) == (False, True)
