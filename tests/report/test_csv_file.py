from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from adaptcl.report.comparisons.comparison import compare
from adaptcl.report.csv_file import write_comparison
from adaptcl.report.saved_run import Run

MakeRun = Callable[..., Run]


def written(path: Path, runs: Sequence[Run], **asked: Any) -> list[dict[str, str]]:
    write_comparison(path, compare(runs, **asked))
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_numbers_are_those_of_the_summary_to_the_last_digit(
    make_run: MakeRun, tmp_path: Path
) -> None:
    runs = [make_run("a"), make_run("b", strategy="adaptcl", adapts=True, final_accuracy=1 / 3)]
    first, second = written(tmp_path / "x.csv", runs)
    summary = runs[1].summary
    assert summary is not None
    assert (second["run"], second["strategy"], second["seeds"]) == ("adaptcl", "adaptcl", "1")
    assert second["finished"] == "true"
    for name in ("accuracy", "best_accuracy", "virtual_time_s", "params_saved", "flops_saved"):
        assert float(second[name]) == getattr(summary, name)
    assert (first["baseline"], float(first["speed_up"])) == ("fedavg-s", 1.0)
    assert float(second["at_time_s"]) == fmean(each.virtual_time_s for each in runs[1].rounds)
    assert int(second["bytes_moved"]) == summary.bytes_sent + summary.bytes_received


def test_over_seeds_every_number_has_its_spread(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [make_run(str(s), seed=s, final_accuracy=0.8 + s / 100) for s in (1, 2, 3)]
    (row,) = written(tmp_path / "x.csv", runs, over_seeds=True)
    assert row["seeds"] == "1 2 3"
    found = [float(row[f"accuracy{ending}"]) for ending in ("", "_sd", "_min", "_max")]
    assert found == pytest.approx([0.82, 0.01, 0.81, 0.83])


def test_what_is_not_known_is_an_empty_cell(make_run: MakeRun, tmp_path: Path) -> None:
    run = replace(make_run("a", finished=False), rounds=())
    _, row = written(tmp_path / "x.csv", [make_run("b"), run], target=0.5)
    assert (row["finished"], row["rounds"]) == ("false", "0")
    assert {row[name] for name in ("accuracy", "speed_up", "target_time_s")} == {""}


def test_the_target_says_how_many_reached_it_and_when(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [
        make_run("a", seed=1, final_accuracy=0.8),
        make_run("b", seed=2, final_accuracy=0.4),
        make_run("c", strategy="adaptcl", seed=1),
    ]
    row, _ = written(tmp_path / "x.csv", runs, target=0.6)
    assert (row["target_accuracy"], row["target_reached"]) == ("0.6", "1")
    times = [float(row[f"target_time_s{end}"]) for end in ("", "_min", "_max")]
    assert times == pytest.approx([200.0] * 3)
    assert row["target_time_s_sd"] == ""


def test_over_seeds_gain_and_speed_up_have_their_intervals(
    make_run: MakeRun, tmp_path: Path
) -> None:
    runs = [make_run(f"a{s}", seed=s) for s in (1, 2)]
    runs += [
        make_run(f"b{s}", strategy="adaptcl", seed=s, final_accuracy=0.8 + gain)
        for s, gain in ((1, 0.01), (2, 0.03), (3, -0.5))
    ]
    held, row = written(tmp_path / "x.csv", runs)
    found = [float(row[f"accuracy_gain{ending}"]) for ending in ("", "_low", "_high")]
    middle, reach = 0.02 * 0.8125, 12.7062 * 0.01 * 0.8125  # a mean of four rising tests
    assert found == pytest.approx([middle, middle - reach, middle + reach])
    assert float(row["speed_up_low"]) < 1 < float(row["speed_up_high"])
    assert (held["accuracy_gain"], held["speed_up"], held["speed_up_low"]) == ("", "1.0", "")
    assert "accuracy_gain" not in written(tmp_path / "x.csv", runs, over_seeds=False)[0]


def test_no_runs_make_an_empty_file(tmp_path: Path) -> None:
    assert written(tmp_path / "x.csv", []) == []


def test_accuracies_by_class_and_worker_are_written_however_classes_were_dealt(
    make_run: MakeRun, tmp_path: Path
) -> None:
    run = make_run("a")
    assert run.summary is not None
    found = replace(run.summary, accuracy_by_class=(0.5, None), accuracy_by_worker=(0.5, 1.0))
    known, older = written(tmp_path / "x.csv", [replace(run, summary=found), make_run("b")])
    names = ("worst_class_accuracy", "least_worker_accuracy", "mean_worker_accuracy")
    assert [known[name] for name in names] == ["0.5", "0.5", "0.75"]
    assert [older[name] for name in names] == ["", "", ""]


def test_bytes_of_an_unfinished_run_are_those_of_its_rounds(
    make_run: MakeRun, tmp_path: Path
) -> None:
    run = make_run("a", finished=False)
    rounds = tuple(replace(each, bytes_sent=30, bytes_received=20) for each in run.rounds)
    (row,) = written(tmp_path / "x.csv", [replace(run, rounds=rounds)])
    assert int(row["bytes_moved"]) == 50 * len(rounds)


def test_each_setting_in_which_runs_differ_has_a_column(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [
        make_run(
            f"{name}{n}",
            strategy=name,
            settings={"sigma": sigma, "codec": codec, "grow": True, **more},
        )
        for n, (name, sigma, codec, more) in enumerate(
            (
                *(("fedavg", 2.0, "plain", {}), ("fedavg", 5.0, "int8", {})),
                ("adaptcl", 2.0, "plain", {"min_retention": 0.1}),
                ("adaptcl", 5.0, "plain", {"min_retention": 0.3, "rounds": 6}),
            )
        )
    ]
    rows = {row["run"]: row for row in written(tmp_path / "x.csv", runs)}
    names = ("strategy", "sigma", "codec", "min_retention", "rounds_setting", "rounds")
    assert sorted([row[name] for name in names] for row in rows.values()) == [
        ["adaptcl", "2.0", "plain", "0.1", "4", "4"],
        ["adaptcl", "5.0", "plain", "0.3", "6", "4"],
        ["fedavg", "2.0", "plain", "", "4", "4"],
        ["fedavg", "5.0", "int8", "", "4", "4"],
    ]
    assert all("grow" not in row and "seed" not in row for row in rows.values())
