from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from adaptcl.errors import SettingError
from benchmarks.benchmark import Request
from benchmarks.peers import adaptcl_side, compare
from benchmarks.peers.shared_job import (
    CNN,
    PeersJob,
    evaluate_model,
    first_model,
    prepare,
    read_job,
)

TINY = PeersJob(rounds=2, users=4, samples=20, cohort=2, tested=10, test_images=100)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    prepare(tmp_path, TINY, None)
    return tmp_path


def test_the_model_is_the_published_one() -> None:
    assert sum(parameter.numel() for parameter in CNN().parameters()) == 1_626_442


def test_every_framework_reads_the_same_job_images_and_first_model(folder: Path) -> None:
    job, train, test = read_job(folder)
    assert job == TINY
    assert len(train.labels) == 80
    assert len(test.labels) == 100
    assert all(len(part) == 20 for part in train.of(3, job))
    assert torch.equal(train.of(3, job)[1], train.labels[60:80])
    first, again = first_model(job).state_dict(), first_model(job).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_made_up_labels_can_be_learned(folder: Path) -> None:
    """Each image lies nearer to its own class's mean than to the others'."""
    _, _, test = read_job(folder)
    images = test.inputs.flatten(1)
    means = torch.stack([images[test.labels == label].mean(0) for label in range(10)])
    nearest = torch.cdist(images, means).argmin(1)
    assert float((nearest == test.labels).float().mean()) > 0.9


def test_evaluating_a_model_keeps_its_mode(folder: Path) -> None:
    job, _, test = read_job(folder)
    model = first_model(job).train()
    loss, accuracy = evaluate_model(model, test)
    assert model.training
    assert loss > 0
    assert 0 <= accuracy <= 1


def test_our_side_answers_with_a_time_and_a_score_for_each_round(folder: Path) -> None:
    adaptcl_side.run(folder)
    answer = json.loads((folder / "adaptcl.json").read_text(encoding="utf-8"))
    assert len(answer["rounds_s"]) == len(answer["accuracies"]) == 2
    assert answer["loss"] > 0


def test_without_any_peer_it_says_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "_is_installed", lambda python, package: False)
    with pytest.raises(SettingError, match=r"adaptcl\[peers\]"):
        compare.measure(Request())


def test_a_ratio_is_of_median_rounds_without_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"adaptcl": [9.0, 1.0, 1.0, 5.0], "pfl": [9.0, 2.0, 1.4, 2.0]}

    def run(python: str, side: str, folder: Path) -> dict[str, Any]:
        return {"rounds_s": times[side], "work_s": 1.0, "loss": 2.0, "accuracy": 0.3}

    monkeypatch.setattr(compare, "_is_installed", lambda python, package: package == "pfl")
    monkeypatch.setattr(compare, "prepare", lambda *_: None)
    monkeypatch.setattr(compare, "_run", run)
    report = compare.measure(Request(repeats=1))
    against = next(row for row in report.rows if row.label == "against pfl-research")
    assert against.value == 2.0
    assert against.verdict == "holds"
    assert list(report.details) == ["adaptcl", "pfl"]
    assert "Flower's simulation is not installed." in report.notes


def test_a_folder_of_a_peers_name_is_not_taken_for_the_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "surely_no_package").mkdir()
    (tmp_path / "surely_no_package" / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    assert not compare._is_installed(sys.executable, "surely_no_package")
    monkeypatch.setenv("PYTHONPATH", ".")
    assert compare._is_installed(sys.executable, "surely_no_package")
