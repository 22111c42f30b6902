from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from adaptcl.strategies import Job
from adaptcl.strategies.fedasync import FedAsync, FedAsyncSettings
from adaptcl.training import Arrival

Jobs = Callable[..., Job]
Answers = Callable[..., Arrival]
Timelines = Callable[..., Any]


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


@pytest.mark.parametrize(("exponent", "weight"), [(0.0, 0.6), (1.0, 0.2), (2.0, 0.6 / 9)])
def test_the_exponent_says_how_fast_the_weight_falls_with_the_staleness(
    one_weight: Jobs, answered: Answers, exponent: float, weight: float
) -> None:
    strategy = FedAsync(one_weight(3, 2, start=0.0), FedAsyncSettings(0.6, exponent))
    first, second, third = strategy.start().tasks
    for task in (second, third):
        strategy.receive(answered(task, {"weight": torch.tensor([[0.0]])}))
    strategy.receive(answered(first, {"weight": torch.tensor([[1.0]])}))
    assert strategy.model()["weight"].item() == pytest.approx(weight)
