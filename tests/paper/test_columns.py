"""The value of a column for a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from paper.columns import COLUMNS
from paper.experiment import Experiment
from paper.result import RunResult

MakeUp = Callable[..., RunResult]


@pytest.fixture
def slow(tiny: Experiment, make_up: MakeUp) -> RunResult:
    run = make_up(tiny.parts[0].row("FedAVG-S").config(1))
    return replace(run, summary=replace(run.summary, accuracy=0.70))


@pytest.fixture
def quick(tiny: Experiment, make_up: MakeUp) -> RunResult:
    """Four rounds of half a minute, tested every other one."""
    return make_up(tiny.parts[0].row("AdaptCL").config(1), round_s=30.0)


def test_the_time_to_the_baseline_is_that_of_the_first_test_as_good_as_its_end(
    slow: RunResult, quick: RunResult
) -> None:
    cases: dict[tuple[float | None, ...], float | None] = {
        (None, 0.71, None, 0.60): 1.0,  # the first such test counts even if later ones fall
        (None, 0.69, None, 0.70): 2.0,  # equal is enough
        (None, 0.69, None, 0.69): None,
    }
    value = COLUMNS["minutes_to_baseline"].value
    for tests, minutes in cases.items():
        run = replace(quick, course=replace(quick.course, accuracy=tests))
        assert value(run, slow) == minutes
    assert value(quick, None) is None
