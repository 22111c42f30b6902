"""The model that is tested and delivered: the mean of the latest global models."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adaptcl.records import WorkerRecord
from adaptcl.runs.evaluator import Averaging
from adaptcl.strategies.strategy import Closed
from adaptcl.units import State


def model(value: float, batches: int = 0) -> State:
    return {"weight": torch.tensor([value]), "num_batches_tracked": torch.tensor(batches)}


def closed(round_: int, pruned_rate: float = 0.0) -> Closed:
    record = WorkerRecord(
        worker=0,
        send_s=1.0,
        train_s=1.0,
        receive_s=1.0,
        update_time_s=3.0,
        retention=1.0,
        pruned_rate=pruned_rate,
        bytes_sent=1,
        bytes_received=1,
    )
    return Closed(round_, (record,))


def means(averaging: Averaging, values: list[float], first: int = 1) -> list[float]:
    return [
        float(averaging.add(model(value), closed(first + number))["weight"])
        for number, value in enumerate(values)
    ]


def test_without_a_share_it_is_always_the_last_model() -> None:
    values = [1.0, 5.0, -3.0, 2.0]
    assert means(Averaging(0.0), values) == values


def test_in_the_first_rounds_it_is_the_last_model() -> None:
    values = [float(number) for number in range(1, 21)]
    assert means(Averaging(0.05), values) == values


def test_the_newest_model_weighs_less_the_more_rounds_there_were() -> None:
    averaging = Averaging(0.1)
    means(averaging, [0.0] * 39)
    assert means(averaging, [1.0], first=40) == [pytest.approx(1 / 4)]
    means(averaging, [0.0] * 159, first=41)
    assert means(averaging, [1.0], first=200)[0] == pytest.approx(1 / 20, abs=1e-3)


def test_one_bad_round_hardly_shows() -> None:
    values = [70.0] * 100
    values[-2] = 50.0
    assert min(means(Averaging(0.05), values)) > 65


def test_a_pruning_begins_the_mean_anew_without_the_round_of_the_pruning() -> None:
    averaging = Averaging(0.1)
    means(averaging, [1.0] * 50)
    pruned = averaging.add(model(9.0), closed(51, pruned_rate=0.3))
    assert float(pruned["weight"]) == 9
    assert means(averaging, [2.0, 4.0, 6.0], first=52) == [2.0, 3.0, 4.0]


def test_what_counts_batches_is_not_averaged() -> None:
    averaging = Averaging(0.5)
    for number in range(1, 10):
        mean = averaging.add(model(1.0, batches=10 * number), closed(number))
    assert int(mean["num_batches_tracked"]) == 90


def test_the_models_that_were_given_are_left_as_they_were() -> None:
    averaging = Averaging(0.5)
    given_ = [model(float(number)) for number in range(10)]
    for number, each in enumerate(given_):
        averaging.add(each, closed(number + 1))
    assert [float(each["weight"]) for each in given_] == list(range(10))


@given(
    values=st.lists(st.floats(-100, 100, width=32), min_size=2, max_size=60),
    share=st.sampled_from([0.0, 0.05, 0.2, 0.9]),
    data=st.data(),
)
def test_it_goes_on_from_a_snapshot_as_if_nothing_had_been(
    values: list[float], share: float, data: st.DataObject
) -> None:
    stop = data.draw(st.integers(1, len(values) - 1))
    whole = means(Averaging(share), values)
    before, after = Averaging(share), Averaging(share)
    means(before, values[:stop])
    after.restore(before.snapshot())
    assert means(after, values[stop:], first=stop + 1) == whole[stop:]


def test_a_snapshot_holds_a_model_only_where_the_next_round_needs_it() -> None:
    averaging = Averaging(0.1)
    means(averaging, [1.0] * 9)
    assert averaging.snapshot()["model"] is None
    means(averaging, [1.0], first=10)
    assert averaging.snapshot()["model"] is not None


@given(values=st.lists(st.floats(0, 1, width=32), min_size=1, max_size=100))
def test_it_lies_among_the_models_it_is_made_of(values: list[float]) -> None:
    seen: list[float] = []
    for value, mean in zip(values, means(Averaging(0.2), values), strict=True):
        seen.append(value)
        assert min(seen) - 1e-6 <= mean <= max(seen) + 1e-6
        assert math.isfinite(mean)
