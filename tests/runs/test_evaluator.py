"""Who is left behind: accuracies by class and by worker at the end of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import adaptcl
from adaptcl import Result
from adaptcl.config.job import JobSettings
from adaptcl.errors import SettingError
from adaptcl.events import Event, RoundFinished, RunFinished
from adaptcl.records import Summary
from adaptcl.runs.workload import Workload, load_workload, workload_from_python
from adaptcl.settings import build
from tests.runs.small_runs import CutOffError, assert_same, clouds, cut_off_after, small_run

CLASSES = 4
Pair = tuple[Tensor, Tensor]


def samples(labels: list[int], seed: int) -> Pair:
    """Inputs that lie around a corner for each class, too near to each other to be easy."""
    dice = torch.Generator().manual_seed(seed)
    chosen = torch.tensor(labels)
    corners = torch.eye(CLASSES, 6)[chosen]
    return corners + 0.4 * torch.randn(len(labels), 6, generator=dice), chosen


PARTS = [samples([0] * 18 + [1] * 6, 1), samples([2] * 24, 2), samples([1] * 12 + [3] * 12, 3)]
TEST = samples([0, 1, 2, 3] * 20, 4)


def run(**settings: Any) -> Result:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, CLASSES))
    given: dict[str, Any] = {
        "strategy": "fedavg-s",
        "rounds": 3,
        "batch_size": 8,
        "train_time": 1.0,
        "figures": "none",
    }
    return adaptcl.run(model, PARTS, TEST, **{**given, **settings})


def right_by_class(result: Result) -> list[float]:
    with torch.no_grad():
        found = result.model(TEST[0]).argmax(1) == TEST[1]
    return [float(found[TEST[1] == label].double().mean()) for label in range(CLASSES)]


def test_the_summary_says_how_well_each_class_is_recognised() -> None:
    result = run()
    by_class = right_by_class(result)
    assert result.summary.accuracy_by_class == pytest.approx(by_class)
    assert result.summary.worst_class_accuracy == pytest.approx(min(by_class))
    assert sum(by_class) / CLASSES == pytest.approx(result.summary.accuracy)
    assert len(set(by_class)) > 1


def test_and_what_that_means_for_the_classes_that_each_worker_has() -> None:
    result = run()
    first, second, third, fourth = right_by_class(result)
    expected = [0.75 * first + 0.25 * second, third, 0.5 * second + 0.5 * fourth]
    assert result.summary.accuracy_by_worker == pytest.approx(expected)
    assert result.summary.samples_by_worker == (24, 24, 24)
    assert result.summary.labels_by_worker == ((18, 6, 0, 0), (0, 0, 24, 0), (0, 12, 0, 12))
    assert result.summary.least_worker_accuracy == pytest.approx(min(expected))
    assert result.summary.mean_worker_accuracy == pytest.approx(sum(expected) / 3)


@pytest.mark.parametrize("settings", [{"evaluate_every": 2}, {"averaging": 0.7}])
def test_it_is_the_model_delivered_that_is_meant(settings: dict[str, Any]) -> None:
    result = run(**settings)
    assert result.summary.accuracy_by_class == pytest.approx(right_by_class(result))


@pytest.mark.slow
@pytest.mark.parametrize("moment", [2, "end"])
def test_a_run_that_goes_on_says_the_same(tmp_path: Path, moment: int | str) -> None:
    whole = run()

    def cut_off(event: Event) -> None:
        finished = isinstance(event, RoundFinished) and event.record.round == moment
        if finished or (isinstance(event, RunFinished) and moment == "end"):
            raise CutOffError

    with pytest.raises(CutOffError):
        run(out=tmp_path / "run", listeners=[cut_off])
    resumed = run(out=tmp_path / "run", resume=True)
    for name in ("accuracy_by_class", "accuracy_by_worker"):
        assert getattr(resumed.summary, name) == getattr(whole.summary, name)
    written = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert tuple(written["accuracy_by_worker"]) == whole.summary.accuracy_by_worker


def test_a_summary_of_an_older_version_says_nothing_of_it(tmp_path: Path) -> None:
    values = run().summary.to_json()
    del values["accuracy_by_class"], values["accuracy_by_worker"]
    older = Summary.from_json(values)
    assert (older.accuracy_by_class, older.accuracy_by_worker) == ((), ())
    assert older.worst_class_accuracy is None
    assert older.least_worker_accuracy is None
    assert older.mean_worker_accuracy is None


def test_each_workers_sub_model_can_be_tested() -> None:
    result = run(strategy="heterofl", worker_widths=(1.0, 0.5, 0.5))
    found = result.sub_model_accuracies(TEST)
    for worker, each in enumerate(found):
        with torch.no_grad():
            scores = result.sub_model(worker).eval()(TEST[0])
        assert each == pytest.approx(float((scores.argmax(1) == TEST[1]).double().mean()))
    assert found[0] == result.summary.accuracy
    assert found[1] == found[2] != found[0]


QUICK: dict[str, Any] = {
    "adaptcl": {"max_importance_lost": 1.0, "least_speed_up": 1.0},
    "rounds": 3,
    "batch_size": 16,
    "train_time": 1.0,
    "workers": 3,
    "sigma": 2.0,
}


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 4))


def dealt(count: int) -> Workload:
    """What a run with the same settings deals to its workers."""
    job = build(JobSettings, {"workers": 3, "holdout": 0.1})
    return workload_from_python(model(), clouds(count), None, job)


def share_right(tested: nn.Module, samples: tuple[Tensor, Tensor]) -> float:
    with torch.no_grad():
        return float((tested(samples[0]).argmax(1) == samples[1]).double().mean())


@pytest.mark.parametrize("strategy", ["adaptcl", "fedasync-s"])
def test_the_delivered_model_is_tested_on_what_the_workers_hold_back(strategy: str) -> None:
    result = adaptcl.run(model(), clouds(120), strategy=strategy, **QUICK)
    parts = [(each.inputs, each.targets) for each in dealt(120).held_back]
    assert [len(labels) for _, labels in parts] == [4, 4, 4]
    found = [share_right(result.model, part) for part in parts]
    assert [each["accuracy"] for each in result.worker_metrics] == pytest.approx(found)
    assert result.summary.accuracy == pytest.approx(sum(found) / 3)
    assert result.summary.accuracy_by_worker == pytest.approx(found)


def test_a_round_has_the_tests_of_the_models_that_were_sent_in_it() -> None:
    first = adaptcl.run(model(), clouds(120), strategy="fedavg-s", **QUICK).rounds[0]
    untrained = model().eval()
    parts = [(each.inputs, each.targets) for each in dealt(120).held_back]
    expected = {worker: share_right(untrained, part) for worker, part in enumerate(parts)}
    assert first.worker_values == pytest.approx(expected)
    assert first.main_value == pytest.approx(sum(expected.values()) / 3)


def test_each_worker_can_have_a_test_set_and_larger_ones_count_more() -> None:
    parts, tests = [clouds(40, seed) for seed in range(2)], [clouds(10, 5), clouds(30, 6)]
    result = adaptcl.run(model(), parts, tests, **{**QUICK, "workers": 2})
    found = [share_right(result.model, part) for part in tests]
    assert [each["accuracy"] for each in result.worker_metrics] == pytest.approx(found)
    assert result.summary.accuracy == pytest.approx(0.25 * found[0] + 0.75 * found[1])
    assert [w.test.samples for w in result.rounds[0].workers if w.test] == [10, 30]


def test_the_model_that_the_last_round_sent_can_be_the_best(tmp_path: Path) -> None:
    good = adaptcl.run(model(), clouds(120), strategy="fedavg", **QUICK).model
    inputs, labels = clouds(120)
    wrong = [(inputs, (labels + 1) % 4)] * 2
    run = {**QUICK, "workers": 2, "rounds": 1, "epochs": 3.0, "learning_rate": 0.1}
    tests = [clouds(40, 5)] * 2
    result = adaptcl.run(good, wrong, tests, strategy="fedavg", out=tmp_path / "run", **run)
    assert result.rounds[0].main_value == result.summary.best_value > result.summary.main_value
    kept = adaptcl.load(tmp_path / "run", model=good, best=True).model.state_dict()
    assert all(torch.equal(kept[name], tensor) for name, tensor in good.state_dict().items())


def test_metrics_of_other_objectives_come_from_workers_too() -> None:
    torch.manual_seed(0)
    data = torch.randn(90, 6), torch.randn(90)
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    result = adaptcl.run(net, data, objective="regression", **QUICK)
    assert {frozenset(each) for each in result.worker_metrics} == {frozenset({"rmse", "mae", "r2"})}
    # The mean of squares is that of all samples, which the workers have equally many of.
    squares = [each["rmse"] ** 2 for each in result.worker_metrics if each["rmse"] is not None]
    assert result.summary.main_value**2 == pytest.approx(sum(squares) / 3)


def test_workers_test_as_often_as_the_job_says_beginning_with_the_first_round() -> None:
    rounds = adaptcl.run(model(), clouds(120), evaluate_every=2, **QUICK).rounds
    assert [bool(each.worker_values) for each in rounds] == [True, False, True]


@pytest.mark.slow
def test_an_interrupted_run_ends_as_it_would_have_ended(tmp_path: Path) -> None:
    settings = {"test": None, "holdout": 0.2, "rounds": 4}
    small_run(tmp_path / "whole", **settings)
    with pytest.raises(CutOffError):
        small_run(tmp_path / "cut", listeners=[cut_off_after(3)], **settings)
    small_run(tmp_path / "cut", resume=True, **settings)
    assert_same(tmp_path / "cut", tmp_path / "whole")
    summary = json.loads((tmp_path / "cut" / "summary.json").read_text())
    assert len(summary["worker_metrics"]) == 4


def test_a_run_with_test_data_records_nothing_of_workers_tests(tmp_path: Path) -> None:
    small_run(tmp_path / "run", rounds=2)
    assert '"test":' not in (tmp_path / "run" / "rounds.jsonl").read_text()
    assert "worker_metrics" not in (tmp_path / "run" / "summary.json").read_text()


def test_of_a_data_set_by_name_the_test_part_is_not_used() -> None:
    job = build(JobSettings, {"model": "small", "data": "digits", "workers": 3, "holdout": 0.2})
    found = load_workload(job)
    trained, tested = map(len, found.worker_samples), map(len, found.held_back)
    shares = [each / (each + left) for left, each in zip(trained, tested, strict=True)]
    assert shares == pytest.approx([0.2] * 3, abs=0.01)
    assert found.tested_by_workers


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"fresh_statistics": 10}, "fresh_statistics measures statistics on samples at the server"),
        ({"strategy": "heterofl"}, "static_batch_norm measures statistics on samples at the serv"),
        ({"test": clouds(9), "holdout": 0.2}, "holdout is 0.2, but test data is given"),
        ({"test": [clouds(9)]}, "workers is 3, but test is a list of 1"),
        ({"holdout": 0.99}, "holdout is 0.99, but a worker has only 10 samples, and none would be"),
    ],
)
def test_what_cannot_be_tested_by_workers_is_refused(given: dict[str, Any], sentence: str) -> None:
    test = given.pop("test", None)
    with pytest.raises(SettingError, match=sentence):
        adaptcl.run(model(), clouds(30), test, **{**QUICK, **given})
