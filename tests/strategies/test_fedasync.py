from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
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


def test_with_mixing_1_a_fresh_model_replaces_the_old_one(
    one_weight: Jobs, answered: Answers
) -> None:
    strategy = FedAsync(one_weight(1, 1, start=4.0), FedAsyncSettings(mixing=1.0))
    (task,) = strategy.start().tasks
    strategy.receive(answered(task, {"weight": torch.tensor([[7.0]])}))
    assert strategy.model()["weight"].item() == 7.0


def test_counters_take_the_largest_value_and_variances_are_mixed(
    with_batch_norm: Jobs, answered: Answers
) -> None:
    job = with_batch_norm(1, 1)
    strategy = FedAsync(job, FedAsyncSettings(mixing=0.5))
    (task,) = strategy.start().tasks
    sent = {**task.state, "1.running_var": torch.full((4,), 3.0)}
    sent["1.num_batches_tracked"] = torch.tensor(7)
    strategy.receive(answered(task, sent))
    assert strategy.model()["1.running_var"].tolist() == [2.0] * 4
    assert strategy.model()["1.num_batches_tracked"].item() == 7


def test_whole_numbers_that_count_nothing_stay_as_they_are(
    one_weight: Jobs, answered: Answers
) -> None:
    job = one_weight(1, 1)
    job.state["index"] = torch.tensor([3])
    strategy = FedAsync(job, FedAsyncSettings())
    (task,) = strategy.start().tasks
    strategy.receive(answered(task, {**task.state, "index": torch.tensor([1000])}))
    assert strategy.model()["index"].item() == 3


def test_a_fast_worker_is_never_held_up(one_weight: Jobs, timeline: Timelines) -> None:
    line = timeline(FedAsync(one_weight(3, 3), FedAsyncSettings()), times=[9, 2, 1]).start().run()
    assert [worker for _, worker in line.arrivals] == [2, 1, 2, 2, 1, 1, 0, 0, 0]


def test_a_checkpoint_file_gives_the_same_continuation(
    with_batch_norm: Jobs, timeline: Timelines, tmp_path: Path
) -> None:
    def new() -> FedAsync:
        return FedAsync(with_batch_norm(3, 4), FedAsyncSettings())

    line = timeline(new(), times=[5, 3, 2]).start().run(rounds=2)
    resumed = line.resumed(new(), tmp_path).run()
    line.run()
    resumed.assert_ends_like(line)
