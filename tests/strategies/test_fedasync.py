from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adaptcl.strategies import Job
from adaptcl.strategies.fedasync import FedAsync, FedAsyncSettings, staleness_weight
from adaptcl.training import Arrival

Jobs = Callable[..., Job]
Answers = Callable[..., Arrival]
Timelines = Callable[..., Any]


def hinge(slope: float, at: int) -> FedAsyncSettings:
    return FedAsyncSettings(staleness_weight="hinge", staleness_slope=slope, staleness_hinge=at)


def test_the_polynomial_weight_is_one_over_the_root_of_staleness_plus_one() -> None:
    weights = [staleness_weight(t, FedAsyncSettings()) for t in (0, 3, 8)]
    assert weights == pytest.approx([1, 1 / 2, 1 / 3])


def test_the_hinge_weight_is_full_up_to_the_hinge_and_falls_from_there() -> None:
    weights = [staleness_weight(t, hinge(slope=0.5, at=4)) for t in (0, 4, 5, 6, 10)]
    assert weights == pytest.approx([1, 1, 1 / 1.5, 1 / 2, 1 / 4])


def test_the_constant_weight_does_not_look_at_the_staleness() -> None:
    constant = FedAsyncSettings(staleness_weight="constant")
    assert {staleness_weight(t, constant) for t in range(100)} == {1.0}


@given(
    st.integers(0, 10_000),
    st.sampled_from(["polynomial", "hinge", "constant"]),
    st.floats(0, 10),
    st.integers(0, 50),
)
def test_a_weight_is_a_share_and_never_grows_with_the_staleness(
    staleness: int, kind: str, a: float, hinge_at: int
) -> None:
    settings = FedAsyncSettings(0.6, kind, a, a, hinge_at)
    fresher, staler = (staleness_weight(t, settings) for t in (staleness, staleness + 1))
    assert 0 < staler <= fresher <= 1


def test_a_stale_model_is_mixed_in_with_less_weight_and_a_later_one_in_full_again(
    one_weight: Jobs, answered: Answers
) -> None:
    strategy = FedAsync(one_weight(2, 3, start=0.0), FedAsyncSettings(mixing=0.6))
    first, second = strategy.start().tasks

    def model() -> float:
        return strategy.model()["weight"].item()

    (third,) = strategy.receive(answered(second, {"weight": torch.tensor([[10.0]])})).tasks
    assert model() == pytest.approx(6.0)  # fresh: 0.4·0 + 0.6·10

    strategy.receive(answered(first, {"weight": torch.tensor([[2.0]])}))
    stale = 0.6 / 2**0.5
    expected = (1 - stale) * 6.0 + stale * 2.0
    assert model() == pytest.approx(expected)

    (fresh,) = strategy.receive(answered(third, {"weight": torch.tensor([[expected]])})).tasks
    assert model() == pytest.approx(expected)  # stale again, but it changes nothing

    strategy.receive(answered(fresh, {"weight": torch.tensor([[1.0]])}))
    assert model() == pytest.approx(0.4 * expected + 0.6 * 1.0), "the base weight has not changed"
