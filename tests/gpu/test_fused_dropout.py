"""The kernel of dropout; `make test-gpu` runs these."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

SEED = 2**62 + 12345


def dice(seed: int = SEED, passes: int = 0) -> Tensor:
    return torch.tensor([seed, passes], device="cuda")


def kept(x: Tensor, p: float, state: Tensor, number: int = 0) -> Tensor:
    from adaptcl.training.gpu.dropout import drop

    return drop(x, p, 1 / (1 - p), state, number)[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("p", [0.1, 0.25, 0.5])
def test_about_so_many_are_dropped_and_the_others_made_up_for(p: float, dtype: torch.dtype) -> None:
    from adaptcl.training.gpu.dropout import drop

    x = torch.randn(10, 64, 14, 14, device="cuda", dtype=dtype)
    y, mask = drop(x, p, 1 / (1 - p), dice(), 0)
    assert mask.dtype == torch.bool
    assert float(mask.float().mean()) == pytest.approx(1 - p, abs=0.01)
    assert torch.equal(y, torch.where(mask, (x.float() / (1 - p)).to(dtype), 0))


def test_seed_pass_and_number_all_matter_and_nothing_else_does() -> None:
    x = torch.randn(1000, 100, device="cuda")
    first = kept(x, 0.5, dice())
    assert torch.equal(kept(x * 2, 0.5, dice()), first)
    others = [
        kept(x, 0.5, dice(SEED + 1)),
        kept(x, 0.5, dice(SEED ^ 2**40)),
        kept(x, 0.5, dice(passes=1)),
        kept(x, 0.5, dice(), number=1),
    ]
    for other in others:
        assert float((first == other).float().mean()) == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("shape", [(10, 64, 14, 14), (3, 5, 7, 2), (4, 1, 6, 6), (4, 6, 1, 1)])
def test_the_layout_makes_no_difference(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, device="cuda")
    last = x.contiguous(memory_format=torch.channels_last)
    assert torch.equal(kept(x, 0.5, dice()), kept(last, 0.5, dice()))
    apart = torch.randn(shape[1:] + shape[:1], device="cuda").permute(3, 0, 1, 2)
    assert torch.equal(kept(x, 0.5, dice()), kept(apart, 0.5, dice()))


def test_neighbours_are_drawn_apart() -> None:
    drawn = kept(torch.ones(10**6, device="cuda"), 0.5, dice()).float() - 0.5
    for distance in (1, 2, 31, 32, 512):
        together = (drawn[:-distance] * drawn[distance:]).mean()
        assert abs(float(together)) < 2e-3
