"""`adaptcl paper` on the command line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from paper.commands import main
from paper.reading import load, names
from paper.result import RunResult, write
from paper.store import result_path

MakeUp = Callable[..., RunResult]


@pytest.fixture
def results(tmp_path: Path, make_up: MakeUp) -> Path:
    for wanted in load("table-dgc").wanted():
        made = make_up(wanted.config)
        write(result_path(tmp_path / "results", made.settings, "0" * 64), made.to_json())
    return tmp_path / "results"


def test_the_list_names_every_experiment_and_what_is_missing(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["list", "--results", str(results)]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in names())
    assert "4 of 4" in shown


def test_an_experiment_with_all_its_runs_needs_no_data_to_be_shown(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["table-dgc", "--results", str(results)]) == 0
    shown = capsys.readouterr().out
    assert "paper" in shown
    assert "ours" in shown
    assert "begun" not in shown


def test_without_the_data_what_there_is_of_an_experiment_is_shown(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    next(results.glob("adaptcl-*.json")).unlink()
    assert main(["table-dgc", "--results", str(results)]) == 0
    shown = capsys.readouterr().out
    assert "1 run not made yet; --data-dir DIR makes what is missing" in shown
    assert "ours" in shown
    assert "not run yet" in shown


def test_on_a_narrow_terminal_every_heading_can_be_read(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for width, sources in (("80", 1), ("300", 8)):
        monkeypatch.setenv("COLUMNS", width)
        assert main(["table-dgc", "--results", str(results)]) == 0
        shown = capsys.readouterr().out
        assert "with statistics measured anew (%)" in shown
        assert "80.90" in shown
        assert shown.count("paper") == max(1, sources // 2)


def test_a_run_that_is_missing_needs_the_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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


@pytest.mark.parametrize("what", ["list", "verdicts", "report"])
def test_results_that_are_not_there_are_not_said_to_be_none(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([what, "--results", "absent"]) == 2
    assert capsys.readouterr() == (
        "",
        "adaptcl: There are no results to look at, because there is no folder absent; name one by "
        "--results (AdaptCL's repository has one), or make your own with `adaptcl paper all`.\n",
    )
    assert list(tmp_path.iterdir()) == []


def test_what_there_is_to_make_is_listed_where_nothing_is_made_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["list"]) == 0
    assert "table-dgc" in capsys.readouterr().out
    assert main(["verdicts"]) == 2
    assert "because there is no folder results; name one" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        ["no-such-table"],
        ["table-dgc", "--seeds", "one"],
        ["table-dgc", "--side-by-side", "0"],
        ["table-dgc", "--time-limit", "-1"],
    ],
)
def test_a_mistake_is_told_in_one_sentence(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_command_can_be_given_without_being_installed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "paper", "list", "--results", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "table-vgg" in done.stdout
