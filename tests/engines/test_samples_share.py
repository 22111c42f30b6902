"""A clock that counts how many samples a worker has, where it is asked to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import adaptcl
from adaptcl import Result
from adaptcl.engines.environment import Environment
from adaptcl.engines.heterogeneity import MIB
from adaptcl.errors import AdaptCLWarning
from adaptcl.settings import build
from adaptcl.training import Recipe, Task
from adaptcl.units import UnitMap

MakeEnvironment = Callable[..., Environment]


def train_times(environment: Environment, units: UnitMap, workers: int) -> list[float]:
    everything = units.everything()
    tasks = [Task(w, 1, {}, everything, build(Recipe, {"epochs": 2.0})) for w in range(workers)]
    return [environment.timing(each, everything, 0.0, MIB, MIB, 0.0).train for each in tasks]


@pytest.mark.parametrize(
    ("share", "times"),
    [(0.0, [10.0, 10.0, 10.0]), (0.5, [6.0, 8.0, 16.0]), (1.0, [2.0, 6.0, 22.0])],
)
def test_a_share_of_the_time_grows_with_the_samples_relative_to_their_mean(
    units: UnitMap, make_environment: MakeEnvironment, share: float, times: list[float]
) -> None:
    environment = make_environment(
        workers=3, samples=(20, 60, 220), samples_share=share, train_time=10.0
    )
    assert train_times(environment, units, 3) == pytest.approx(times)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(
    samples=st.lists(st.integers(1, 10_000), min_size=1, max_size=9),
    share=st.floats(0, 1),
    flops=st.floats(0, 1),
)
def test_the_mean_over_workers_is_the_profiles_time_whatever_the_share(
    units: UnitMap,
    make_environment: MakeEnvironment,
    samples: list[int],
    share: float,
    flops: float,
) -> None:
    count = len(samples)
    environment = make_environment(
        workers=count, samples=samples, samples_share=share, flops_share=flops, train_time=10.0
    )
    assert sum(train_times(environment, units, count)) / count == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("samples", "chosen", "remarked"),
    [
        ((20, 41), {}, True),
        ((20, 40), {}, False),
        ((), {}, False),
        ((20, 41), {"samples_share": 0.1}, False),
        ((20, 41), {"training_time": "measured"}, False),
    ],
)
def test_parts_of_very_different_size_that_take_equally_long_are_remarked_upon(
    make_environment: MakeEnvironment,
    samples: tuple[int, ...],
    chosen: dict[str, Any],
    remarked: bool,
) -> None:
    sentence = make_environment(samples=samples, **chosen).ignores_samples()
    assert (sentence is not None) == remarked
    if sentence is not None:
        assert sentence == (
            "One worker has 2.1 times the samples of another, yet training takes both equally "
            "long, because samples_share is 0 (as in the paper); on real machines it is near 1."
        )


# In a run --------------------------------------------------------------------------------------


def run(sizes: list[int], **chosen: Any) -> Result:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 2))
    dice = torch.Generator().manual_seed(0)
    inputs = torch.randn(sum(sizes), 6, generator=dice)
    labels = torch.arange(sum(sizes)) % 2
    parts = list(zip(torch.split(inputs, sizes), torch.split(labels, sizes), strict=True))
    return adaptcl.run(
        model, parts, (inputs, labels), strategy="fedavg-s", rounds=2, sigma=1.0, batch_size=4,
        epochs=1.0, profile_epochs=1.0, train_time=10.0, flops_share=0.0, **chosen,
    )  # fmt: skip


def test_in_a_run_the_worker_with_more_samples_takes_longer() -> None:
    result = run([4, 12], samples_share=1.0)
    for record in result.rounds:
        assert [worker.train_s for worker in record.workers] == pytest.approx([5.0, 15.0])
    assert result.summary.heterogeneity_first > 0.4


def test_as_in_the_paper_it_does_not_by_itself_and_that_is_said() -> None:
    with pytest.warns(AdaptCLWarning, match=r"^One worker has 3\.0 times the samples of another"):
        result = run([4, 12])
    assert [worker.train_s for worker in result.rounds[0].workers] == [10.0, 10.0]
    assert result.rounds[0].heterogeneity == 0.0


def test_parts_that_are_nearly_equal_take_equally_long_without_a_word() -> None:
    assert [w.train_s for w in run([8, 12]).rounds[0].workers] == [10.0, 10.0]
