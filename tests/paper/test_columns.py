"""The value of a column for a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from paper.columns import COLUMNS, ComparedRun
from paper.experiment import Experiment
from paper.result import RunResult

MakeUp = Callable[..., RunResult]


def with_tests(run: RunResult, *tests: float) -> RunResult:
    """A run of four rounds that was tested in every other one."""
    accuracy = (None, tests[0], None, tests[1])
    return replace(run, course=replace(run.course, accuracy=accuracy))


@pytest.fixture
def slow(tiny: Experiment, make_up: MakeUp) -> RunResult:
    """A baseline that has 70 % from its first test on, after two minutes."""
    run = make_up(tiny.parts[0].row("FedAVG-S").config(1), round_s=60.0)
    return with_tests(run, 0.70, 0.70)


@pytest.fixture
def quick(tiny: Experiment, make_up: MakeUp) -> RunResult:
    return make_up(tiny.parts[0].row("AdaptCL").config(1), round_s=30.0)


@pytest.mark.parametrize(
    ("tests", "minutes"),
    [
        ((0.70, 0.60), 1.0),  # equal is enough, even if later tests fall
        ((0.60, 0.84), 85 / 60),  # between 60 % after 60 s and a mean of 72 % around 90 s
        ((0.69, 0.69), None),
    ],
)
def test_the_time_to_the_baseline_is_interpolated_between_means_of_tests(
    slow: RunResult, quick: RunResult, tests: tuple[float, float], minutes: float | None
) -> None:
    compared = ComparedRun(with_tests(quick, *tests), slow)
    assert COLUMNS["minutes_to_baseline"].value(compared) == (
        None if minutes is None else pytest.approx(minutes)
    )
    assert COLUMNS["speed_up_to_baseline"].value(compared) == (
        None if minutes is None else pytest.approx(2 / minutes)
    )


def test_without_a_baseline_there_is_no_time_to_it(quick: RunResult) -> None:
    assert COLUMNS["minutes_to_baseline"].value(ComparedRun(quick)) is None


def test_accuracy_at_equal_time_is_that_where_the_shortest_run_ends(
    slow: RunResult, quick: RunResult
) -> None:
    compared = ComparedRun(with_tests(quick, 0.60, 0.84), slow, equal_time_s=75.0)
    assert COLUMNS["accuracy_at_equal_time"].value(compared) == pytest.approx(66)
    assert COLUMNS["delta_at_equal_time"].value(compared) is None  # no test of the baseline yet
    later = replace(compared, equal_time_s=120.0)
    assert COLUMNS["delta_at_equal_time"].value(later) == pytest.approx(2)
