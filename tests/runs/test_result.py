"""Using what a finished run left behind."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import adaptcl
from adaptcl import data
from adaptcl.cli.main import main
from adaptcl.errors import AdaptCLError

HALF = {
    "pruned_rates": [[0.5, 0.0]],
    "first_pruning": 2,
    "pruning": "index",
    "adaptcl": {"max_importance_lost": 1.0},
}


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))


def points(count: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(count)
    return torch.randn(count, 6), torch.arange(count) % 3


def trained(folder: Path | None, **settings: Any) -> adaptcl.Result:
    torch.manual_seed(0)
    fast: dict[str, Any] = {
        "workers": 2,
        "rounds": 3,
        "bandwidth_max": 0.01,
        "figures": "none",
        **HALF,
        **settings,
    }
    return adaptcl.run(net(), points(60), points(30), out=folder, **fast)


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the command line on images."""
    folder = tmp_path_factory.mktemp("delivery") / "run"
    words = (
        "run --model small --data digits --samples 400 --workers 2 --rounds 3 --strategy adaptcl"
    )
    pruned = "--pruned-rates 0.5,0 --first-pruning 2 --max-importance-lost 1"
    assert main([*words.split(), *pruned.split(), "--out", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run from Python; not to be changed."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    trained(folder)
    return folder


@pytest.mark.slow
def test_a_model_by_name_is_made_anew_and_takes_images_as_they_are(digits: Path) -> None:
    loaded = adaptcl.load(digits)
    test = data.load("digits", None).test
    assert test.inputs.dtype == torch.uint8
    with torch.no_grad():
        right = (loaded(test.inputs).argmax(1) == test.labels).float().mean().item()
        prepared, _ = test.batch(torch.arange(len(test)))
        torch.testing.assert_close(loaded(test.inputs), loaded.model(prepared))
        torch.testing.assert_close(loaded(prepared), loaded.model(prepared))
    assert right == pytest.approx(json.loads((digits / "summary.json").read_text())["accuracy"])
    assert not loaded.training
    assert loaded.inputs.shape == (1, 8, 8)
    assert loaded.inputs.classes == tuple("0123456789")


def test_a_workers_sub_model_is_smaller_and_as_large_as_the_summary_says(digits: Path) -> None:
    summary = json.loads((digits / "summary.json").read_text())
    sizes = [
        sum(p.numel() for p in adaptcl.load(digits, worker=worker).parameters())
        for worker in (0, 1)
    ]
    whole = sum(p.numel() for p in adaptcl.load(digits).parameters())
    assert [size / whole for size in sizes] == pytest.approx(summary["retention"])
    assert sizes[0] < 0.7 * whole
    assert sizes[1] == whole
    assert adaptcl.load(digits, worker=0)(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


def test_a_sub_model_has_the_values_of_the_whole_one(finished: Path) -> None:
    result = trained(None)
    small, whole = result.sub_model(0), result.model
    kept = result.sub_models.distinct[result.sub_models.of_worker[0]]
    assert 0 < int(kept.sum()) < 32
    weight = small.state_dict()["0.weight"]
    assert torch.equal(weight, whole.state_dict()["0.weight"][kept])
    assert torch.equal(small.state_dict()["3.weight"], whole.state_dict()["3.weight"][:, kept])
    again = adaptcl.load(finished, model=net(), worker=0)
    assert torch.equal(again.model.state_dict()["0.weight"], weight)
    inputs, _ = points(9)
    torch.testing.assert_close(again(inputs), small(inputs))
    torch.testing.assert_close(adaptcl.load(finished, model=net())(inputs), whole(inputs))


def test_a_run_that_is_only_looked_at_again_has_its_sub_models(finished: Path) -> None:
    first = trained(None)
    again = trained(finished, resume=True)
    assert again.sub_models.of_worker == first.sub_models.of_worker
    assert str(again.sub_model(0)) == str(first.sub_model(0)) != str(again.sub_model(1))


def test_the_model_given_is_not_changed(finished: Path) -> None:
    mine = net()
    before = {name: tensor.clone() for name, tensor in mine.state_dict().items()}
    adaptcl.load(finished, model=mine, worker=0)
    assert all(torch.equal(before[name], tensor) for name, tensor in mine.state_dict().items())


def test_what_cannot_be_loaded_is_told_in_a_sentence(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "config.toml").write_text('model = "small"\nstrategy = "fedavg"\n')
    for words, sentence in [
        ((finished, None, None), r"was trained with a custom model, .* give it"),
        ((finished, nn.Linear(6, 3), None), "holds another model than this"),
        ((finished, net(), 2), "There is no worker 2: they are numbered 0 to 1"),
        ((tmp_path / "nowhere", None, None), "is not a run folder"),
        ((tmp_path / "begun", None, None), "has no checkpoint yet; `adaptcl resume"),
        ((tmp_path / "begun", None, 1), "is not finished, and sub-models are kept only at the end"),
    ]:
        folder, model, worker = words
        with pytest.raises(AdaptCLError, match=sentence):
            adaptcl.load(folder, model=model, worker=worker)


def test_what_a_folder_names_is_not_imported(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "harmful.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "run" / "config.toml").write_text(
        'model = "harmful:build"\nseed = 1\nstrategy = "fedavg"\n'
    )
    with pytest.raises(AdaptCLError, match=r"a custom model, 'harmful:build'; give it"):
        adaptcl.load(tmp_path / "run")
    assert adaptcl.load(tmp_path / "run", model=net()).training is False
