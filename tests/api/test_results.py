"""Results from Python: compared, drawn, as data frames and in notebooks."""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas  # type: ignore[import-untyped, unused-ignore]
import pytest
import torch
from torch import nn

import adaptcl
from adaptcl.errors import AdaptCLError, SettingError
from adaptcl.events import Event, RoundFinished
from adaptcl.report.figures.pictures import image_of
from tests.runs.small_runs import CutOffError, clouds, cut_off_after

TRAIN, TEST = clouds(120), clouds(60, 1)
FAST: dict[str, Any] = {
    **{"workers": 3, "rounds": 2, "batch_size": 16, "bandwidth_max": 0.01, "sigma": 3.0},
    "threads": 1,
    "adaptcl": {"max_importance_lost": 1.0},  # so small a model loses much at once
}


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 4))


def run(**settings: Any) -> adaptcl.Result:
    return adaptcl.run(net(), TRAIN, TEST, **{**FAST, **settings})


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[adaptcl.Results, Path]:
    out = tmp_path_factory.mktemp("swept") / "runs"
    settings = {**FAST, "strategy": ["fedavg-s", "adaptcl"], "seed": [1, 2]}
    return adaptcl.sweep(net(), TRAIN, TEST, out=out, **settings), out


@pytest.fixture(scope="module")
def result() -> adaptcl.Result:
    return run(strategy="adaptcl", pruning_interval=1)


def test_a_result_shows_a_short_time_too(result: adaptcl.Result) -> None:
    shown = repr(replace(result, summary=replace(result.summary, virtual_time_s=0.0123)))
    assert shown.endswith("after 2 rounds and 0.012 s of virtual time>")


def test_a_sweep_has_a_result_and_a_folder_for_each_run_and_figures_of_all(
    swept: tuple[adaptcl.Results, Path],
) -> None:
    results, out = swept
    found = [(each.summary.strategy, each.summary.seed) for each in results]
    assert found == [("fedavg-s", 1), ("adaptcl", 1), ("fedavg-s", 2), ("adaptcl", 2)]
    assert results[3].folder == out / "adaptcl_seed-2"
    assert {"overview.png", "timeline.png"} < {path.name for path in (out / "figures").iterdir()}
    assert (out / "report.html").exists()
    table = results.compare()
    assert [row.group.label for row in table.rows] == ["fedavg-s", "adaptcl"]
    assert "fedavg-s, 2 runs" in str(table).replace("\n", " ")
    assert str(table).endswith(table.verdict)
    assert "<td style='text-align:left'>adaptcl, 2 runs</td>" in table._repr_html_()
    assert str(adaptcl.compare(out)) == str(table)
    assert list(results.to_dataframe()["seed"]) == [1, 1, 2, 2]
    assert results.plot("heterogeneity").axes[0].get_title(loc="right").endswith("of 2 runs")


def test_the_options_of_compare_are_those_of_the_command(
    swept: tuple[adaptcl.Results, Path],
) -> None:
    results, _ = swept
    found = results.compare(at_time="2s", target_accuracy=40)
    assert found.at_time_s == 2
    assert str(found) == str(results.compare(at_time=2, target=0.4))
    with pytest.raises(SettingError, match="at_time is 'soon', but it is a number of seconds"):
        results.compare(at_time="soon")
    with pytest.raises(SettingError, match=r"target_accuracy is 0\.4, but it is in per cent"):
        results.compare(target_accuracy=0.4)


def test_results_without_a_folder_are_compared_too(result: adaptcl.Result) -> None:
    found = adaptcl.compare([run(strategy="fedavg"), result])
    assert [row.group.first.strategy for row in found.rows] == ["fedavg", "adaptcl"]
    assert found.baselines == [found.rows[0]]
    assert list(found.to_dataframe()["strategy"]) == ["fedavg", "adaptcl"]
    same = adaptcl.compare(result, [result])
    assert [row.group.label for row in same.rows] == ["adaptcl (run-1)", "adaptcl (run-2)"]
    for wrong, sentence in [([], "the list of results is empty"), ([3], "Number 1 is an int")]:
        with pytest.raises(SettingError, match=sentence):
            adaptcl.compare(wrong)  # type: ignore[arg-type]


def test_a_result_is_drawn_as_a_figure_that_a_notebook_shows(result: adaptcl.Result) -> None:
    figure = adaptcl.plot(result, "timeline")
    assert figure.axes[0].get_title(loc="left") == "What each worker does"
    assert result.plot("timeline", titles=False).axes[0].get_title(loc="left") == ""
    shown = figure._repr_png_()  # type: ignore[attr-defined]
    assert shown == image_of(figure, "png")
    with pytest.raises(SettingError, match="no figure 'overveiw' of these runs; did you mean"):
        result.plot("overveiw")


def test_a_notebook_shows_a_result_with_its_table_and_its_overview(result: adaptcl.Result) -> None:
    shown = result._repr_html_()
    assert "<table>" in shown
    assert "data:image/png;base64," in shown


def test_rounds_and_workers_become_data_frames(
    result: adaptcl.Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = result.to_dataframe()
    assert list(rounds["accuracy"]) == [record.accuracy for record in result.rounds]
    workers = result.to_dataframe(by_worker=True)
    assert len(workers) == 6
    assert list(workers["retention"])[-1] == result.rounds[-1].workers[-1].retention
    assert result.summary.to_dict()["accuracy"] == result.summary.accuracy
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(AdaptCLError, match="Data frames need pandas; pip install pandas"):
        result.to_dataframe()


@pytest.mark.slow
def test_one_function_is_a_listener_and_a_run_in_a_folder_has_figures(tmp_path: Path) -> None:
    heard: list[Event] = []
    run(strategy="fedavg", out=tmp_path / "run", figures="svg", listeners=heard.append)
    assert sum(isinstance(event, RoundFinished) for event in heard) == 2
    assert (tmp_path / "run" / "figures" / "overview.svg").exists()
    assert (tmp_path / "run" / "report.html").exists()


def test_no_figures_are_still_a_report(tmp_path: Path) -> None:
    run(strategy="fedavg", out=tmp_path / "run", figures="none")
    assert (tmp_path / "run" / "report.html").exists()
    assert not (tmp_path / "run" / "figures").exists()


def test_a_run_is_tracked_in_its_folder(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    run(out=tmp_path / "run", figures="none", track="tensorboard")
    assert list((tmp_path / "run" / "tensorboard").iterdir())
    with pytest.raises(SettingError, match="track needs a folder for the run"):
        run(track=["tensorboard"])
    with pytest.raises(SettingError, match="There is no tracker 'tb'"):
        run(out=tmp_path / "other", track="tb")


def test_nothing_is_resumed_without_a_folder() -> None:
    for call in (adaptcl.run, adaptcl.sweep):
        with pytest.raises(SettingError, match="resume needs a folder for the run; give one by"):
            call(net(), TRAIN, TEST, resume=True, **FAST)


class Touchy(nn.Module):
    """A model that fails once when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.body = net()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if "now" in FAILS:
            FAILS.clear()
            raise RuntimeError("out of luck")
        scores: torch.Tensor = self.body(inputs)
        return scores


FAILS: set[str] = set()


def test_one_failing_run_of_a_sweep_is_named_and_the_others_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    heard: list[str] = []

    def fail_after_the_first_round_of_the_first_run(event: Event) -> None:
        if isinstance(event, RoundFinished):
            heard.append("round")
            if len(heard) == 1:
                FAILS.add("now")

    settings = {**FAST, "rounds": 3, "seed": [1, 2], "strategy": "fedavg", "figures": "none"}
    listen = fail_after_the_first_round_of_the_first_run
    with pytest.warns(adaptcl.AdaptCLWarning, match="fedavg with seed 1 failed in round [23]"):
        results = adaptcl.sweep(Touchy(), TRAIN, TEST, out=tmp_path, listeners=listen, **settings)
    (failed,) = results.failed
    assert (failed.strategy, failed.seed) == ("fedavg", 1)
    assert failed.round in (2, 3)  # training may be ahead of what listeners hear
    assert failed.folder == tmp_path / "seed-1"
    assert str(failed).endswith(
        f"in round {failed.round} ({failed.folder}): RuntimeError: out of luck"
    )
    assert [each.summary.seed for each in results] == [2]
    assert repr(results).endswith(f"\n{failed}")
    assert results._repr_html_().endswith(f"<p>{failed}</p>")
    assert "RuntimeError: out of luck" in capsys.readouterr().err
    again = adaptcl.sweep(Touchy(), TRAIN, TEST, out=tmp_path, resume=True, **settings)
    assert [each.summary.seed for each in again] == [1, 2]
    assert again.failed == ()


def test_a_forecast_from_python_has_the_times_that_the_run_has() -> None:
    settings = {**FAST, "strategy": ["fedavg-s", "adaptcl"]}
    found = adaptcl.forecast(net(), TRAIN, TEST, **settings)
    assert [each.strategy for each in found] == ["fedavg-s", "adaptcl"]
    assert found[0].virtual_time_s == run(strategy="fedavg-s").summary.virtual_time_s
    assert repr(found).startswith(f"clock: {found[0].clock}\n")
    assert "<table>" in found._repr_html_()
    assert len(adaptcl.forecast(net(), TRAIN, **FAST)) == 1


def test_a_forecast_takes_what_a_run_learns_by() -> None:
    def collate(samples: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, labels = zip(*samples, strict=True)
        return torch.stack(inputs), torch.stack(labels)

    task: dict[str, Any] = {
        "loss": nn.functional.cross_entropy,
        "metrics": {"right": lambda scores, labels: (scores.argmax(1) == labels).float().mean()},
        "collate": collate,
    }
    (found,) = adaptcl.forecast(net(), TRAIN, TEST, **FAST, **task)
    assert found.virtual_time_s == run(**task).summary.virtual_time_s


@pytest.mark.parametrize("strategy", ["fedavg", "adaptcl"])
@pytest.mark.parametrize("test", [TEST, None], ids=["test set", "holdout"])
def test_an_unfinished_run_can_be_loaded(tmp_path: Path, strategy: str, test: Any) -> None:
    settings = {**FAST, "strategy": strategy, "figures": "none"}
    cut_off = {**settings, "rounds": 4, "listeners": [cut_off_after(3)]}
    with pytest.raises(CutOffError):
        adaptcl.run(net(), TRAIN, test, out=tmp_path / "run", **cut_off)
    with pytest.warns(adaptcl.AdaptCLWarning, match="is not finished; this is its model, after 2 "):
        loaded = adaptcl.load(tmp_path / "run", model=net())
    whole = adaptcl.run(net(), TRAIN, test, **settings)
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], tensor)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert adaptcl.load(tmp_path / "run", model=net(), best=True).inputs == loaded.inputs


def test_a_sub_model_of_an_unfinished_run_can_be_loaded(tmp_path: Path) -> None:
    half = {"pruned_rates": [[0.5, 0.0, 0.0]], "first_pruning": 2, "pruning": "index"}
    with pytest.raises(CutOffError):
        run(strategy="adaptcl", rounds=4, out=tmp_path, listeners=[cut_off_after(3)], **half)
    sizes = []
    for worker in (0, 1):
        said = f"is not finished; this is worker {worker}'s sub-model, after 2 of 4 rounds"
        with pytest.warns(adaptcl.AdaptCLWarning, match=said):
            part = adaptcl.load(tmp_path, model=net(), worker=worker)
        assert part(TEST[0]).shape == (60, 4)
        sizes.append(sum(each.numel() for each in part.parameters()))
    assert sizes[0] < 0.7 * sizes[1]


@pytest.mark.parametrize("image", [np.zeros((2, 8, 8), np.uint8), torch.zeros(2, 1, 8, 8).byte()])
def test_describe_takes_images_as_a_run_does(image: Any) -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
    assert adaptcl.describe(model, image).modules[0].cuttable == 4
    assert adaptcl.describe(model.double(), torch.zeros(2, 1, 8, 8).double()).parameters == 330


def test_describe_takes_a_frame_with_or_without_its_targets() -> None:
    frame = pandas.DataFrame({"a": [0.0, 1.0], "label": [0, 1], "b": [1.0, 0.0]})
    model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))
    for example in (frame, frame[["a", "b"]]):
        assert adaptcl.describe(model, example).modules[0].cuttable == 4


def test_a_notebook_shows_what_can_be_cut() -> None:
    shown = adaptcl.describe(net(), TRAIN[0][:2])._repr_html_()
    assert "<td style='text-align:left'>Linear</td>" in shown
    assert "parameters" in shown
