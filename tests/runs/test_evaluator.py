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
from adaptcl.events import Event, RoundFinished, RunFinished
from adaptcl.records import Summary

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
    assert result.summary.least_worker_accuracy == pytest.approx(min(expected))
    assert result.summary.mean_worker_accuracy == pytest.approx(sum(expected) / 3)


@pytest.mark.parametrize("settings", [{"evaluate_every": 2}, {"averaging": 0.7}])
def test_it_is_the_model_delivered_that_is_meant(settings: dict[str, Any]) -> None:
    result = run(**settings)
    assert result.summary.accuracy_by_class == pytest.approx(right_by_class(result))


class CutOffError(BaseException):
    """Ends a run in the middle."""


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
