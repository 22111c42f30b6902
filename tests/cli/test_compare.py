"""`adaptcl compare`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

Command = Callable[..., tuple[int, str, str]]
Refused = Callable[[list[str], str], None]


@pytest.mark.slow
def test_what_is_no_run_cannot_be_compared_or_resumed(refused: Refused, runs: Path) -> None:
    Path("empty").mkdir()
    figures = runs / "both" / "figures"
    for verb in ("resume", "compare"):
        refused([verb, "absent"], "There is no run folder absent.")
        refused([verb, "empty"], "empty is not a run folder: it holds no config.toml.")
        refused([verb, str(figures)], f"{figures} is not a run folder: it holds no config.toml.")
        refused(
            [verb], f"the following arguments are required: RUN; `adaptcl {verb} --help` says more."
        )


def test_a_folder_means_all_runs_below_it_and_each_run_counts_once(
    command: Command, runs: Path
) -> None:
    def compare(*paths: Path | str) -> tuple[int, str, str]:
        return command("compare", *map(str, paths), "--markdown", "--over-seeds")

    both, second = runs / "both", runs / "seed2"
    whole = compare(both / "adaptcl", both / "fedavg-s", second)
    rows = [line for line in whole[1].splitlines() if line.startswith("|")]
    assert (whole[0], len(rows), whole[2]) == (0, 4, "")
    assert rows[2].startswith("| fedavg-s, 2 runs |")
    assert rows[3].startswith("| adaptcl |")
    assert list(Path().iterdir()) == []  # Markdown draws no figures
    assert compare(runs) == whole
    assert compare(both, second) == whole
    assert (both / "figures").exists()
    assert compare(*both.iterdir(), second) == whole
    os.symlink(both / "fedavg-s", "link")
    assert compare("link", both, both / "adaptcl" / ".." / "fedavg-s", second, second) == whole


def test_figures_are_drawn_over_those_of_an_earlier_comparison_and_nothing_is_removed(
    command: Command, runs: Path
) -> None:
    assert command("compare", str(runs / "both"))[0] == 0
    both = {path.name for path in Path("figures").iterdir()}
    assert "retention-adaptcl.png" in both
    output = command("compare", str(runs / "seed2"))[1]
    assert "figures  figures (overview.png, " in output
    assert ".png)" in output
    assert {path.name for path in Path("figures").iterdir()} == both
    Path("file").write_text("")
    status, _, errors = command("compare", str(runs / "seed2"), "--out", "file")
    assert status == 2
    assert errors.startswith("adaptcl: file/")
    assert errors.endswith(" cannot be written: File exists.\n")


@pytest.mark.slow
def test_the_table_can_be_written_as_csv(command: Command, refused: Refused, runs: Path) -> None:
    words = ("--csv", "table.csv", "--target-accuracy", "50", "--out", "drawn", "--no-titles")
    status, output, errors = command("compare", str(runs / "both"), *words, "--figures", "svg")
    assert (status, errors) == (0, "")
    assert all(len(line) <= 80 for line in output.splitlines()[:12])
    assert "parameters saved" in output
    assert "time to 50 %" in output
    assert "figures  drawn (overview.svg, " in output
    assert "Accuracy over time" not in (Path("drawn") / "overview.svg").read_text()
    table, verdict = output.splitlines()[-2:]
    assert table == "table    table.csv"
    assert " was fastest to 50 %: " in verdict
    heading, *lines = Path("table.csv").read_text().splitlines()
    assert heading.startswith("run,strategy,seeds,finished,baseline,at_time_s,accuracy_at_time,")
    assert [line.split(",")[:5] for line in lines] == [
        ["fedavg-s", "fedavg-s", "1", "true", "fedavg-s"],
        ["adaptcl", "adaptcl", "1", "true", "fedavg-s"],
    ]
    refused(
        ["compare", str(runs / "both"), "--csv", "no/table.csv"],
        "no/table.csv cannot be written: No such file or directory.",
    )
    refused(
        ["compare", str(runs / "both"), "--figures", "gif"],
        "There is no figure format 'gif'; there are png, svg, pdf, with commas between, and none.",
    )


@pytest.mark.slow
def test_of_very_many_figures_only_some_are_named(command: Command, runs: Path) -> None:
    output = command("compare", str(runs / "both"), "--figures", "png,svg", "--out", "drawn")[1]
    (line,) = (line for line in output.splitlines() if line.startswith("figures"))
    drawn = len(list(Path("drawn").iterdir()))
    assert line.endswith(f", and {drawn - 9} more)")


@pytest.mark.slow
def test_run_resume_and_compare_show_the_same_table_and_verdict(command: Command) -> None:
    def table(*words: str) -> list[str]:
        lines = command(*words)[1].splitlines()
        assert lines[-1].startswith("verdict  ")
        return [line for line in lines if line.startswith(("┃", "│", "verdict"))]

    job = ["--model=small", "--data=digits", "--workers=2", "--rounds=1", "--epochs=0.1"]
    whole = table("run", *job, "--strategy", "fedavg,adaptcl", "--out", "both")
    (speed_ups,) = (line.split("│") for line in whole if "speed-up" in line)
    assert speed_ups[2].strip() == "1.00×"
    assert table("resume", "both") == whole
    assert table("compare", "both/adaptcl", "both/fedavg") == whole


def test_the_baseline_and_the_time_of_a_comparison_can_be_chosen(
    command: Command, refused: Refused, runs: Path
) -> None:
    words = ["compare", str(runs / "both"), "--markdown"]
    output = command(*words, "--baseline", "adaptcl", "--at-time", "0.75min")[1]
    assert "| accuracy at 45 s | time to adaptcl's final accuracy | speed-up |" in output
    assert " final accuracy of " in output.splitlines()[-1]
    assert "adaptcl" in output.splitlines()[-1]
    latex = command("compare", str(runs / "both"), "--latex")[1]
    assert latex.startswith(r"\begin{tabular}{lrrrr}")
    assert latex.splitlines()[1].endswith(r"& speed-up \\")
    assert latex.splitlines()[-1].startswith("% ")
    refused(
        [*words, "--baseline", "ssp-s"],
        "There is no run 'ssp-s' to compare with; there are fedavg-s, adaptcl.",
    )
    refused(
        [*words, "--at-time", "soon"],
        "argument --at-time: it is 'soon', but it must be a number of seconds, above 0, or a "
        "time such as 300s, 90min or 2h; `adaptcl compare --help` says more.",
    )


def test_beside_a_table_for_a_paper_figures_are_drawn_if_they_are_asked_for(
    command: Command, runs: Path
) -> None:
    words = ("compare", str(runs / "seed2"))
    for asked in (("--latex", "--figures", "pdf"), ("--markdown", "--figures=pdf", "--out=figs")):
        status, output, errors = command(*words, *asked)
        folder = Path("figs" if "--out=figs" in asked else "figures")
        assert (status, errors) == (0, f"adaptcl: figures are in {folder}\n")
        assert {path.suffix for path in folder.iterdir()} == {".pdf"}
        assert "figures" not in output
    assert command(*words, "--latex", "--figures", "none", "--out", "no")[2] == ""
    assert not Path("no").exists()


def test_the_columns_of_a_table_can_be_chosen(command: Command, runs: Path) -> None:
    words = ["compare", str(runs / "both"), "--columns"]
    output = command(*words, "bytes, speed-up,speed", "--markdown")[1]
    assert output.startswith("| run | bytes moved | speed-up |\n")
    output = command(*words, "bytes", "--latex")[1]
    assert r"run & bytes moved \\" in output.splitlines()
    status, _, errors = command(*words, "cost")
    assert (status, errors[:56]) == (2, "adaptcl: No column begins with 'cost'; there are accurac")


def test_a_page_has_a_port_that_exists(refused: Refused) -> None:
    refused(
        ["watch", "both", "--port", "70000"],
        "argument --port: it is '70000', but it must be a whole number, at least 0 and at most "
        "65535; `adaptcl watch --help` says more.",
    )


def test_a_target_accuracy_is_in_per_cent(refused: Refused) -> None:
    for word in ("0.8", "101"):
        refused(
            ["compare", "both", "--target-accuracy", word],
            f"argument --target-accuracy: it is '{word}', but it must be a number, above 1 and "
            "at most 100; `adaptcl compare --help` says more.",
        )
