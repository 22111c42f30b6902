from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from adaptcl.engines.environment import EnvironmentSettings
from adaptcl.report import Run
from adaptcl.report.labels import shared_differences, unequal
from adaptcl.settings import declared

MakeRun = Callable[..., Run]

_PROFILED: dict[str, Any] = {"training_time": "profile"}


def two_runs(make_run: MakeRun, one: dict[str, Any], other: dict[str, Any]) -> list[Run]:
    return [
        make_run("a", strategy="fedavg-s", settings=_PROFILED | one),
        make_run("b", strategy="adaptcl", settings=_PROFILED | other),
    ]


@pytest.mark.parametrize("name", [each.name for each in declared(EnvironmentSettings)])
def test_whatever_sets_the_clock_makes_another_job(make_run: MakeRun, name: str) -> None:
    assert unequal(two_runs(make_run, {name: 0.25}, {name: 0.5})) == [name]


@pytest.mark.parametrize(
    "name", ["rounds", "workers", "model", "data", "samples", "partition", "epochs", "batch_size"]
)
def test_whatever_sets_the_work_makes_another_job(make_run: MakeRun, name: str) -> None:
    values = {"model": "small", "data": "fashion", "partition": "by-label"}
    runs = two_runs(make_run, {name: 3}, {name: values.get(name, 5)})
    assert unequal(runs) == [name]


@pytest.mark.parametrize("name", ["codec", "fixed", "averaging", "learning_rate", "strength"])
def test_what_belongs_to_a_method_does_not(make_run: MakeRun, name: str) -> None:
    runs = two_runs(make_run, {name: 0.1}, {name: 0.2})
    assert unequal(runs) == []
    assert shared_differences(runs) == [name]


def test_a_setting_that_does_nothing_makes_no_other_job(make_run: MakeRun) -> None:
    idle: dict[str, Any] = {"bandwidths": [1.0, 2.0], "partition": "iid"}
    one, other = ({"sigma": value, "label_share": value} for value in (2.0, 5.0))
    assert unequal(two_runs(make_run, idle | one, idle | other)) == []


def test_seeds_and_threads_make_another_job_only_where_training_is_timed(make_run: MakeRun) -> None:
    runs = two_runs(make_run, {"seed": 1, "threads": 1}, {"seed": 2, "threads": 4})
    assert unequal(runs) == []
    measured = {"training_time": "measured"}
    runs = [
        make_run("c", settings={"threads": 1, **measured}),
        make_run("d", settings={"threads": 4, **measured}),
    ]
    assert unequal(runs) == ["threads"]


def test_a_setting_that_an_older_folder_lacks_is_compared_among_the_others(
    make_run: MakeRun,
) -> None:
    runs = [make_run("a"), make_run("b", settings={"jitter": 0.1})]
    assert unequal(runs) == []
    assert unequal([*runs, make_run("c", settings={"jitter": 0.2})]) == ["jitter"]


def test_real_and_virtual_time_are_different_clocks(make_run: MakeRun) -> None:
    runs = two_runs(make_run, {"sigma": 2.0}, {"sigma": 5.0})
    (runs[0].folder / "network.toml").touch()
    assert unequal(runs) == ["clock"]
