"""The command `python -m paper`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from paper.__main__ import main
from paper.experiment import load_experiment, load_experiments
from paper.result import RunResult, write_result
from paper.store import result_path

MakeUp = Callable[..., RunResult]
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, make_up: MakeUp) -> Path:
    """All results of one experiment."""
    folder = tmp_path_factory.mktemp("results")
    for planned in load_experiment("table-dgc").planned_runs():
        made = make_up(planned.config)
        write_result(result_path(folder, made.settings, "0" * 64), made.to_json())
    return folder


def test_the_list_names_every_experiment_and_what_is_missing(results: Path) -> None:
    command = [sys.executable, "-m", "paper", "list", "--results", str(results)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        cwd=REPOSITORY,
        env={**os.environ, "COLUMNS": "80"},
    )
    assert all(experiment.name in done.stdout for experiment in load_experiments())
    assert "4 of 4" in done.stdout


def test_an_experiment_with_all_its_runs_needs_no_data_to_be_shown(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for width, tables in (("80", 2), ("300", 1)):
        monkeypatch.setenv("COLUMNS", width)
        assert main(["table-dgc", "--results", str(results)]) == 0
        shown = capsys.readouterr().out
        assert shown.count("with statistics measured") == tables
        assert shown.count("paper") == shown.count("ours, 1 seed") == 4
        assert "80.90" in shown
        assert "begun" not in shown


def test_without_the_data_the_existing_runs_of_an_experiment_are_shown(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in list(results.glob("*.json"))[1:]:
        (tmp_path / path.name).write_bytes(path.read_bytes())
    assert main(["table-dgc", "--results", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "1 run not made yet; --data-dir DIR makes what is missing" in shown
    assert "ours" in shown
    assert "not run yet" in shown


def test_a_missing_run_needs_the_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["table-dgc", "--results", str(tmp_path)]) == 2
    assert "cifar10 needs a data folder" in capsys.readouterr().err


def test_the_report_and_the_verdicts_are_made_from_results_alone(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "docs"
    assert main(["report", "--results", str(results), "--out", str(out)]) == 0
    assert (out / "paper.md").exists()
    assert (out / "figures" / "paper-table-dgc-1.svg").exists()
    assert main(["verdicts", "--results", str(results)]) == 0
    assert "not run yet" in capsys.readouterr().out


def test_a_folder_of_results_that_does_not_exist_is_an_error_and_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for what in ("list", "verdicts", "report"):
        assert main([what, "--results", "absent"]) == 2
        assert capsys.readouterr() == (
            "",
            "adaptcl: There is no folder of results absent; name one with --results, or make your "
            "own results with `python -m paper all`.\n",
        )
    # The list also serves before there is any result.
    assert main(["list"]) == 0
    assert "table-dgc" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_a_mistake_gives_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ["no-such-table"],
        ["table-dgc", "--seeds", "one"],
        ["table-dgc", "--side-by-side", "0"],
        ["table-dgc", "--time-limit", "-1"],
    ):
        assert main(words) == 2
        assert capsys.readouterr().err.count("\n") == 1
