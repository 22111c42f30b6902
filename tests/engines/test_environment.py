from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import adaptcl
from adaptcl import Result
from adaptcl.engines.bandwidths import MIB
from adaptcl.engines.environment import Environment, EnvironmentSettings
from adaptcl.errors import AdaptCLWarning, SettingError
from adaptcl.settings import build
from adaptcl.training import Pruning, Recipe, Task, Timing
from adaptcl.units import Kept, UnitMap, flops, size_bytes

MakeEnvironment = Callable[..., Environment]


def task(units: UnitMap, *, kept: Kept | None = None, worker: int = 0, round: int = 1,
         prune: bool = False, **recipe: float) -> Task:  # fmt: skip
    """A task as an environment sees it: sizes and recipe, no tensors."""
    return Task(
        worker=worker,
        round=round,
        state={},
        kept=units.everything() if kept is None else kept,
        recipe=build(Recipe, recipe),
        pruning=Pruning(0.5, "index") if prune else None,
    )


def half(units: UnitMap) -> Kept:
    kept = units.everything().clone()
    kept[::2] = False
    return kept


def took(
    environment: Environment, asked: Task, after: Kept, *, start: float = 0.0,
    sent: int = MIB, received: int = MIB,
) -> Timing:  # fmt: skip
    return environment.timing(asked, after, start, sent, received)


# Update time -----------------------------------------------------------------------------------


def test_update_time_is_send_and_train_and_receive(
    units: UnitMap, make_environment: MakeEnvironment
) -> None:
    environment = make_environment(bandwidths=(2.0, 0.5), train_time=10.0, profile_epochs=2.0)
    timing = took(environment, task(units), units.everything(), sent=3 * MIB, received=MIB)
    assert (timing.send, timing.train, timing.receive) == (1.5, 10.0, 0.5)
    assert timing.update_time == 12.0
    assert (timing.bytes_sent, timing.bytes_received) == (3 * MIB, MIB)
    slower = took(environment, task(units, worker=1), units.everything(), sent=3 * MIB)
    assert (slower.send, slower.train, slower.receive) == (6.0, 10.0, 2.0)


def test_training_time_follows_the_number_of_epochs(
    units: UnitMap, make_environment: MakeEnvironment
) -> None:
    environment = make_environment(train_time=10.0, profile_epochs=2.0)
    for epochs, seconds in ((2.0, 10.0), (1.0, 5.0), (0.5, 2.5)):
        timing = took(environment, task(units, epochs=epochs), units.everything())
        assert timing.train == pytest.approx(seconds)


def test_only_the_share_that_goes_with_flops_shrinks_with_the_sub_model(
    units: UnitMap, make_environment: MakeEnvironment
) -> None:
    smaller = half(units)
    relative = flops(units, smaller) / flops(units, units.everything())
    assert 0.4 < relative < 0.6
    for share in (0.0, 0.25, 1.0):
        environment = make_environment(train_time=10.0, flops_share=share)
        timing = took(environment, task(units, kept=smaller), smaller)
        assert timing.train == pytest.approx(10 * (1 - share + share * relative))


def test_a_model_whose_flops_cannot_be_counted_takes_the_whole_time(units: UnitMap) -> None:
    uncounted = replace(units, work=())
    assert flops(uncounted, uncounted.everything()) == 0
    settings = EnvironmentSettings(train_time=10.0, flops_share=0.8, bandwidths=(1.0,))
    environment = Environment(settings, uncounted, workers=1, epochs=2.0, seed=1)
    for kept in (uncounted.everything(), half(uncounted)):
        timing = took(environment, task(uncounted, kept=kept), kept)
        assert timing.train == pytest.approx(10.0)


def test_beta_of_the_epochs_are_trained_at_the_size_before_the_pruning(
    units: UnitMap, make_environment: MakeEnvironment
) -> None:
    environment = make_environment(train_time=10.0, flops_share=1.0)
    smaller = half(units)
    relative = flops(units, smaller) / flops(units, units.everything())
    for beta in (0.0, 0.25, 1.0):
        timing = took(environment, task(units, prune=True, beta=beta), smaller)
        assert timing.train == pytest.approx(10 * (beta + (1 - beta) * relative))
    # Without a pruning beta has nothing to split.
    assert took(environment, task(units, beta=0.25), units.everything()).train == 10.0


def test_a_workers_speed_divides_its_training_time_and_no_other(
    units: UnitMap, make_environment: MakeEnvironment
) -> None:
    environment = make_environment(speeds=(2.0, 0.5), train_time=10.0)
    trains = [took(environment, task(units, worker=w), units.everything()) for w in (0, 1)]
    assert [timing.train for timing in trains] == [5.0, 20.0]
    assert [timing.send for timing in trains] == [1.0, 1.0]


@pytest.mark.parametrize("epochs", [0.5, 2.0, 8.0])
def test_sigma_is_the_ratio_of_update_times_whatever_the_number_of_epochs(
    units: UnitMap, make_environment: MakeEnvironment, epochs: float
) -> None:
    environment = make_environment(
        workers=4, epochs=epochs, sigma=3.0, bandwidth_max=0.01, train_time=2.0, profile_epochs=2.0
    )
    size = size_bytes(units, units.everything())
    times = [
        took(
            environment,
            task(units, worker=worker, epochs=epochs),
            units.everything(),
            sent=size,
            received=size,
        )
        for worker in range(4)
    ]
    assert environment.links[-1].down == environment.links[-1].up == pytest.approx(0.01)
    fastest = 2 * size / MIB / 0.01 + 2.0 * epochs / 2.0
    assert [t.update_time / fastest for t in times] == pytest.approx([3, 7 / 3, 5 / 3, 1])


@pytest.mark.parametrize("name", ["bandwidths", "speeds"])
def test_a_list_must_have_an_entry_for_each_worker(
    make_environment: MakeEnvironment, name: str
) -> None:
    with pytest.raises(SettingError) as refused:
        make_environment(workers=3, **{name: (1.0, 2.0)})
    assert str(refused.value) == (
        f"{name} has 2 entries, but it must have one for each of the 3 workers."
    )


# Jitter ----------------------------------------------------------------------------------------


def test_jitter_is_the_same_for_the_same_seed_worker_and_round(
    units: UnitMap, make_environment: MakeEnvironment
) -> None:
    first, again = (make_environment(jitter=0.2, seed=7) for _ in range(2))
    everything = units.everything()
    times = {
        (worker, number): took(first, task(units, worker=worker, round=number), everything)
        for worker in (0, 1)
        for number in (1, 2, 3)
    }
    for (worker, number), timing in reversed(times.items()):
        assert took(again, task(units, worker=worker, round=number), everything) == timing
    assert len({timing.update_time for timing in times.values()}) == 6
    other = took(make_environment(jitter=0.2, seed=8), task(units), everything)
    assert other != times[0, 1]


def test_jitter_stretches_every_part_alike_and_has_the_spread_asked_for(
    units: UnitMap, make_environment: MakeEnvironment
) -> None:
    calm, shaken = make_environment(train_time=9.0), make_environment(train_time=9.0, jitter=0.1)
    everything = units.everything()
    plain = took(calm, task(units), everything)
    factors = []
    for number in range(1, 301):
        timing = took(shaken, task(units, round=number), everything)
        factors.append(timing.train / plain.train)
        assert timing.send / plain.send == pytest.approx(factors[-1])
        assert timing.receive / plain.receive == pytest.approx(factors[-1])
    logs = torch.tensor(factors).log()
    assert float(logs.std()) == pytest.approx(0.1, rel=0.15)
    assert float(logs.mean()) == pytest.approx(0.0, abs=0.02)


# Conditions that change ------------------------------------------------------------------------


def traced(make: MakeEnvironment, folder: Path, rows: str, **settings: float) -> Environment:
    path = folder / "trace.csv"
    path.write_text("time_s,worker,bandwidth,speed,available\n" + rows)
    return make(trace=str(path), **settings)


def test_a_transfer_goes_on_at_the_new_rate_when_bandwidth_changes(
    units: UnitMap, make_environment: MakeEnvironment, tmp_path: Path
) -> None:
    rows = "4,0,0.5,1,1\n8,0,2,1,1\n"
    environment = traced(make_environment, tmp_path, rows, train_time=10.0)
    # 4 s at 1 MiB/s, 4 s at 0.5, and the last 3 MiB at 2.
    timing = took(environment, task(units), units.everything(), sent=9 * MIB, received=2 * MIB)
    assert timing.send == pytest.approx(9.5)
    assert timing.receive == pytest.approx(1.0)
    other = took(environment, task(units, worker=1), units.everything(), sent=9 * MIB)
    assert other.send == 9.0


CHANGES = st.lists(
    st.tuples(st.floats(0.1, 20), st.floats(0.1, 10), st.floats(0.1, 10)), max_size=6
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(CHANGES, st.floats(0, 50), st.integers(0, 40 * MIB))
def test_a_transfer_ends_when_the_integral_of_the_rate_says(
    units: UnitMap,
    make_environment: MakeEnvironment,
    tmp_path: Path,
    changes: list[tuple[float, float, float]],
    start: float,
    amount: int,
) -> None:
    moment, rows = 0.0, []
    for gap, bandwidth, speed in changes:
        moment += gap
        rows.append((moment, bandwidth, speed))
    text = "".join(f"{t!r},0,{b!r},{s!r},1\n" for t, b, s in rows)
    environment = traced(make_environment, tmp_path, text, train_time=10.0)
    timing = took(environment, task(units), units.everything(), start=start, sent=amount)

    def between(begin: float, end: float, what: int) -> float:
        """The integral of a factor, piece by piece."""
        edges = [0.0, *(t for t, _, _ in rows), math.inf]
        factors = [1.0, *(row[what] for row in rows)]
        return sum(
            max(0.0, min(end, right) - max(begin, left)) * factor
            for left, right, factor in zip(edges, edges[1:], factors, strict=False)
        )

    arrived = start + timing.send
    trained = arrived + timing.train
    assert between(start, arrived, 1) * MIB == pytest.approx(amount, rel=1e-9, abs=1)
    assert between(arrived, trained, 2) == pytest.approx(10.0, rel=1e-9)
    assert between(trained, trained + timing.receive, 1) == pytest.approx(1.0, rel=1e-9)


# The lower bound -------------------------------------------------------------------------------


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(CHANGES, st.floats(0, 50), st.floats(0, 1), st.floats(0, 1), st.integers(1, 50), st.data())
def test_no_update_arrives_before_the_earliest_time_told_beforehand(
    units: UnitMap,
    make_environment: MakeEnvironment,
    tmp_path: Path,
    changes: list[tuple[float, float, float]],
    start: float,
    flops_share: float,
    beta: float,
    number: int,
    data: st.DataObject,
) -> None:
    moment, text = 0.0, ""
    for gap, bandwidth, speed in changes:
        moment += gap
        text += f"{moment!r},0,{bandwidth!r},{speed!r},1\n"
    environment = traced(
        make_environment, tmp_path, text, train_time=10.0, flops_share=flops_share, jitter=0.3
    )
    chosen = data.draw(st.lists(st.booleans(), min_size=units.count, max_size=units.count))
    kept = torch.tensor(chosen)
    after = kept & torch.tensor([place % 3 != 0 for place in range(len(chosen))])
    asked = task(units, kept=kept, round=number, prune=True, beta=beta)
    received = data.draw(st.integers(0, 3 * MIB))
    timing = took(environment, asked, after, start=start, received=received)
    assert environment.shortest(asked, start, MIB).update_time <= timing.update_time


def test_the_default_link_is_the_papers(units: UnitMap) -> None:
    environment = Environment(EnvironmentSettings(train_time=24.1), units, 10, 2.0, 1)
    assert environment.links[-1].down == pytest.approx(5.0)


# Samples -----------------------------------------------------------------------------------------


def train_times(environment: Environment, units: UnitMap, workers: int) -> list[float]:
    everything = units.everything()
    tasks = [Task(w, 1, {}, everything, build(Recipe, {"epochs": 2.0})) for w in range(workers)]
    return [environment.timing(each, everything, 0.0, MIB, MIB).train for each in tasks]


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


@pytest.mark.parametrize(
    ("samples", "chosen", "remarked"),
    [
        ((20, 41), {}, True),
        ((20, 40), {}, False),
        ((), {}, False),
        ((20, 41), {"samples_share": 0.1}, False),
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
        epochs=1.0, profile_epochs=1.0, train_time=10.0, flops_share=0.0, bandwidth_max=1e-4,
        **chosen,
    )  # fmt: skip


def test_as_in_the_paper_it_does_not_by_itself_and_that_is_said() -> None:
    with pytest.warns(AdaptCLWarning, match=r"^One worker has 3\.0 times the samples of another"):
        result = run([4, 12])
    assert [worker.train_s for worker in result.rounds[0].workers] == [10.0, 10.0]
    assert result.rounds[0].heterogeneity == 0.0
