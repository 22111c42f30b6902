from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adaptcl.report import Run, write_comparison

MakeRun = Callable[..., Run]


def written(path: Path, runs: Sequence[Run], **asked: Any) -> list[dict[str, str]]:
    write_comparison(path, runs, **asked)
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
    assert float(first["speed_up"]) == 1.0
    assert int(second["bytes_moved"]) == summary.bytes_sent + summary.bytes_received


def test_over_seeds_every_number_has_its_spread(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [make_run(str(s), seed=s, final_accuracy=0.8 + s / 100) for s in (1, 2, 3)]
    (row,) = written(tmp_path / "x.csv", runs, over_seeds=True)
    assert row["seeds"] == "1 2 3"
    told = [float(row[f"accuracy{ending}"]) for ending in ("", "_sd", "_min", "_max")]
    assert told == pytest.approx([0.82, 0.01, 0.81, 0.83])


def test_what_is_not_known_is_an_empty_cell(make_run: MakeRun, tmp_path: Path) -> None:
    run = replace(make_run("a", finished=False), rounds=())
    _, row = written(tmp_path / "x.csv", [make_run("b"), run], target_accuracy=0.5)
    assert (row["finished"], row["rounds"]) == ("false", "0")
    assert {row[name] for name in ("accuracy", "speed_up", "target_time_s")} == {""}


def test_the_target_says_how_many_reached_it_and_when(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [
        make_run("a", seed=1, final_accuracy=0.8),
        make_run("b", seed=2, final_accuracy=0.4),
    ]
    (row,) = written(tmp_path / "x.csv", runs, over_seeds=True, target_accuracy=0.6)
    assert (row["target_accuracy"], row["target_reached"]) == ("0.6", "1")
    assert float(row["target_time_s"]) == 200.0


def test_no_runs_make_an_empty_file(tmp_path: Path) -> None:
    assert written(tmp_path / "x.csv", []) == []
