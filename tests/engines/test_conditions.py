from __future__ import annotations

import math
from pathlib import Path

import pytest

from adaptcl.engines.conditions import Conditions, WorkerCondition, read_conditions
from adaptcl.errors import SettingError

HEADER = "time_s,worker,bandwidth,speed,available\n"


def written(folder: Path, rows: str, header: str = HEADER) -> Path:
    path = folder / "trace.csv"
    path.write_text(header + rows)
    return path


def test_a_worker_without_a_line_is_always_there_and_never_changes(tmp_path: Path) -> None:
    conditions = read_conditions(written(tmp_path, "10,0,0.5,2,1\n"), 2)
    assert conditions.at(1, 1e9) == WorkerCondition(0.0)
    assert conditions.after(1, 0.0) == math.inf


def test_a_line_holds_from_its_moment_until_the_next(tmp_path: Path) -> None:
    conditions = read_conditions(written(tmp_path, "10,0,0.5,2,1\n30,0,0.25,1,1\n"), 1)
    assert [conditions.at(0, t).bandwidth for t in (0, 9.9, 10, 29.9, 30, 99)] == [
        1, 1, 0.5, 0.5, 0.25, 0.25,
    ]  # fmt: skip
    assert [conditions.after(0, t) for t in (0, 10, 29, 30)] == [10, 30, 30, math.inf]
    assert conditions.at(0, 10).speed == 2


def test_a_star_stands_for_every_worker(tmp_path: Path) -> None:
    conditions = read_conditions(written(tmp_path, "5,*,0.5,1,1\n7,1,2,1,1\n"), 3)
    assert [conditions.at(w, 6).bandwidth for w in range(3)] == [0.5, 0.5, 0.5]
    assert [conditions.at(w, 8).bandwidth for w in range(3)] == [0.5, 2, 0.5]


def test_of_two_lines_for_one_moment_the_later_holds(tmp_path: Path) -> None:
    conditions = read_conditions(written(tmp_path, "0,*,0.5,1,1\n0,0,3,1,1\n"), 2)
    assert [conditions.at(w, 0).bandwidth for w in range(2)] == [3, 0.5]


def test_of_two_lines_for_one_moment_the_earlier_never_was(tmp_path: Path) -> None:
    conditions = read_conditions(written(tmp_path, "10,*,1,1,0\n10,0,1,1,1\n"), 2)
    assert conditions.changes_of_presence() == [(10.0, 1, False)]
    assert conditions.by_worker[0] == (WorkerCondition(0.0), WorkerCondition(10.0))


def test_presence_is_told_as_changes_in_order_of_time(tmp_path: Path) -> None:
    rows = "0,2,1,1,0\n20,0,1,1,0\n20,1,1,1,0\n25,1,0.5,1,0\n40,0,1,1,1\n"
    conditions = read_conditions(written(tmp_path, rows), 3)
    assert conditions.changes_of_presence() == [
        (0.0, 2, False),
        (20.0, 0, False),
        (20.0, 1, False),
        (40.0, 0, True),
    ]
    assert Conditions.steady(3).changes_of_presence() == []


def test_blank_lines_and_spaces_are_allowed(tmp_path: Path) -> None:
    header = "time_s, worker, bandwidth, speed, available\n"
    conditions = read_conditions(written(tmp_path, "\n 5 , 0 , 0.5 , 1 , 1 \n\n", header), 1)
    assert conditions.at(0, 5).bandwidth == 0.5


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ("x,0,1,1,1", "line 2 of {} is 'x,0,1,1,1'; it must be time_s,worker,bandwidth,"),
        ("1,0,1,1", "line 2 of {} is '1,0,1,1'; it must be time_s,worker,bandwidth,"),
        ("1,0,1,1,yes", "line 2 of {} is '1,0,1,1,yes'; it must be time_s,worker,"),
        ("1,0,0,1,1", "line 2 of {}: times must be at least 0 and factors above 0."),
        ("-1,0,1,1,1", "line 2 of {}: times must be at least 0 and factors above 0."),
        ("1,0,nan,1,1", "line 2 of {}: times must be at least 0 and factors above 0."),
        ("inf,0,1,1,1", "line 2 of {}: times must be at least 0 and factors above 0."),
        ("1,2,1,1,1", "line 2 of {} names worker 2, but there are 0 to 1."),
        ("1,-1,1,1,1", "line 2 of {} names worker -1, but there are 0 to 1."),
        ("9,0,1,1,1\n3,0,1,1,1", "line 3 of {} goes back in time."),
    ],
)  # fmt: skip
def test_a_line_that_is_none_is_refused_in_one_sentence(
    tmp_path: Path, rows: str, sentence: str
) -> None:
    path = written(tmp_path, rows)
    with pytest.raises(SettingError) as refused:
        read_conditions(path, 2)
    assert str(refused.value).startswith("trace: " + sentence.format(path))


@pytest.mark.parametrize("content", ["", "0,0,1,1,1\n", "time,worker\n"])
def test_a_file_without_the_heading_is_refused(tmp_path: Path, content: str) -> None:
    path = written(tmp_path, "", content)
    with pytest.raises(SettingError, match=r"must begin with the line time_s,worker,bandwidth,"):
        read_conditions(path, 2)


def test_a_file_that_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"absent\.csv cannot be read"):
        read_conditions(tmp_path / "absent.csv", 2)
    (tmp_path / "noise.csv").write_bytes(b"\xff\xfe\x00\x81" * 20)
    with pytest.raises(SettingError, match=r"noise\.csv is not a CSV file"):
        read_conditions(tmp_path / "noise.csv", 2)
