"""Numbers that are not finite, which show that training diverged."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptcl.training.divergence import first_not_finite

ANY = st.floats(width=32, allow_nan=True, allow_infinity=True)


@settings(deadline=None)
@given(st.lists(st.lists(ANY, min_size=1, max_size=40), min_size=1, max_size=5))
def test_exactly_the_first_tensor_that_is_not_finite_is_named(rows: list[list[float]]) -> None:
    tensors = {str(n): torch.tensor(row) for n, row in enumerate(rows)}
    broken = (name for name, t in tensors.items() if not bool(torch.isfinite(t).all()))
    assert first_not_finite(tensors) == next(broken, None)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_large_numbers_are_finite_though_their_sum_is_not(dtype: torch.dtype) -> None:
    most = torch.full((1000,), torch.finfo(dtype).max, dtype=dtype)
    assert first_not_finite({"large": most}) is None
    most[999] = torch.inf
    assert first_not_finite({"fine": torch.ones(2), "large": most}) == "large"


def test_counters_and_nothing_at_all_are_finite() -> None:
    assert first_not_finite({}) is None
    assert first_not_finite({"count": torch.tensor(3), "empty": torch.empty(0)}) is None
