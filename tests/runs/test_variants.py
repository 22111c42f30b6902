"""The forms of a run's model: the mean of its latest models, and when all forms are measured."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import adaptcl
from adaptcl import Result
from adaptcl.records import WorkerRecord
from adaptcl.runs import variants as module
from adaptcl.runs.variants import Averaging
from adaptcl.strategies.strategy import Closed
from adaptcl.training.objectives.evaluation import USUAL_COUNT
from adaptcl.units import State
from tests.runs.small_runs import CutOffError, assert_same, cut_off_after


def state(value: float, batches: int = 0) -> State:
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
        float(averaging.add(state(value), closed(first + number))["weight"])
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
    pruned = averaging.add(state(9.0), closed(51, pruned_rate=0.3))
    assert float(pruned["weight"]) == 9
    assert means(averaging, [2.0, 4.0, 6.0], first=52) == [2.0, 3.0, 4.0]


def test_what_counts_batches_is_not_averaged() -> None:
    averaging = Averaging(0.5)
    for number in range(1, 10):
        mean = averaging.add(state(1.0, batches=10 * number), closed(number))
    assert int(mean["num_batches_tracked"]) == 90


def test_the_models_that_were_given_are_left_as_they_were() -> None:
    averaging = Averaging(0.5)
    given_ = [state(float(number)) for number in range(10)]
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


def run(**settings: Any) -> Result:
    """Three workers with 24 samples, and a test set of 8: a measurement costs 16 + 72 samples."""
    torch.manual_seed(0)
    inputs = torch.randn(80, 6)
    labels = (inputs.sum(1) > 0).long()
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    train, test = (inputs[:72], labels[:72]), (inputs[72:], labels[72:])
    given: dict[str, Any] = {"strategy": "fedavg", "workers": 3, "rounds": 12, "train_time": 1.0}
    return adaptcl.run(model, train, test, figures="none", **{**given, **settings})


def measured(result: Result) -> list[int]:
    return [each.round for each in result.rounds if each.variants]


def test_forms_are_measured_once_the_training_has_paid_for_them() -> None:
    # A round of ten epochs passes 720 samples, three times each; 2 % of that pay for 43 samples.
    rounds = run(epochs=10).rounds
    assert [each.round for each in rounds if each.variants] == [3, 6, 9, 12]
    for each in rounds:
        assert set(each.variants) <= {"merged", "averaged", "fresh"}
        if each.variants:
            assert each.variants["merged"] == each.main_value
    assert measured(run(epochs=1)) == []


def test_each_form_is_what_a_run_that_delivers_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "USUAL_SHARE", 0.5)
    found = run(epochs=10).rounds
    for name, settings in (
        ("averaged", {"averaging": 0.5}),
        ("fresh", {"fresh_statistics": USUAL_COUNT}),
    ):
        alone = run(epochs=10, **settings).rounds
        pairs = [(a.variants, b.main_value) for a, b in zip(found, alone, strict=True)]
        assert all(forms[name] == value for forms, value in pairs if forms)
        both = [(a.variants, b.variants) for a, b in zip(found, alone, strict=True) if b.variants]
        assert both
        assert all(a == b for a, b in both if a)


def test_a_run_that_goes_on_measures_in_the_same_rounds(tmp_path: Path) -> None:
    run(epochs=10, out=tmp_path / "whole")
    with pytest.raises(CutOffError):
        run(epochs=10, out=tmp_path / "cut", listeners=[cut_off_after(5)])
    again = run(epochs=10, out=tmp_path / "cut", resume=True)
    assert_same(tmp_path / "cut", tmp_path / "whole")
    assert measured(again) == [3, 6, 9, 12]


def test_a_round_without_a_measurement_says_nothing_of_it(tmp_path: Path) -> None:
    run(epochs=10, rounds=3, out=tmp_path / "r")
    lines = (tmp_path / "r" / "rounds.jsonl").read_text().splitlines()
    assert ["variants" in json.loads(line) for line in lines] == [False, False, True]
