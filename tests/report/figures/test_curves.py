from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptcl.records import RoundRecord
from adaptcl.report.comparisons.groups import RunGroup
from adaptcl.report.figures.curves import (
    by_round,
    last_retention,
    metric_over_time,
    update_times,
)
from adaptcl.report.saved_run import Run

MakeRun = Callable[..., Run]

MAIN_VALUE = attrgetter("main_value")


def with_accuracies(run: Run, times: list[float], accuracies: list[float | None]) -> Run:
    rounds = tuple(
        RoundRecord(number, time, accuracy, 0.5, ())
        for number, (time, accuracy) in enumerate(zip(times, accuracies, strict=True), start=1)
    )
    return replace(run, rounds=rounds)


def test_over_rounds_there_is_a_mean_between_the_lowest_and_the_highest(make_run: MakeRun) -> None:
    runs = (
        make_run("a", seed=1, rounds=2, final_accuracy=0.8),
        make_run("b", seed=2, rounds=2, final_accuracy=0.4),
    )
    curve = by_round(RunGroup("x", runs), MAIN_VALUE)
    assert curve.x == (1, 2)
    assert curve.mean == pytest.approx((0.45, 0.6))
    assert curve.low == pytest.approx((0.3, 0.4))
    assert curve.high == pytest.approx((0.6, 0.8))


def test_rounds_in_which_a_worker_had_no_time_yet_have_no_heterogeneity(make_run: MakeRun) -> None:
    run = make_run("a", rounds=3)
    first, *rest = run.rounds
    late = replace(run, rounds=(replace(first, heterogeneity=None), *rest))
    assert by_round(RunGroup("x", (run, late)), lambda record: record.heterogeneity).x == (2, 3)


def test_rounds_that_only_some_runs_tested_are_left_out(make_run: MakeRun) -> None:
    run = make_run("a")
    often = with_accuracies(run, [1, 2, 3], [0.1, 0.2, 0.3])
    seldom = with_accuracies(run, [1, 2, 3], [None, 0.4, None])
    never = with_accuracies(run, [1, 2, 3], [None, None, None])
    assert by_round(RunGroup("x", (often, seldom, never)), MAIN_VALUE).x == (2,)


def test_over_time_each_run_counts_with_what_it_had_at_that_time(make_run: MakeRun) -> None:
    run = make_run("a")
    fast = with_accuracies(run, [10, 20, 30], [0.1, 0.5, 0.9])
    slow = with_accuracies(run, [20, 40], [0.3, 0.7])
    curve = metric_over_time(RunGroup("x", (fast, slow)))
    # From the second run's first test to the first run's last, and then the mean of both ends.
    assert curve.x == (20, 35)
    assert curve.mean == pytest.approx((0.4, 0.8))
    assert curve.low == pytest.approx((0.3, 0.7))
    assert curve.high == pytest.approx((0.5, 0.9))


def test_one_run_is_drawn_through_its_own_points(make_run: MakeRun) -> None:
    run = with_accuracies(make_run("a"), [10, 20, 30], [0.1, None, 0.9])
    curve = metric_over_time(RunGroup("x", (run,)))
    assert (curve.x, curve.mean) == ((10, 30), (0.1, 0.9))
    assert curve.low == curve.mean == curve.high


@given(
    st.lists(
        st.lists(st.tuples(st.floats(0.01, 100), st.floats(0, 1)), min_size=1, max_size=6),
        min_size=2,
        max_size=4,
    )
)
def test_a_mean_never_leaves_its_band_and_time_never_goes_back(
    steps: list[list[tuple[float, float]]],
) -> None:
    runs = []
    for each in steps:
        now, rounds = 0.0, []
        for number, (step, accuracy) in enumerate(each, start=1):
            now += step
            rounds.append(RoundRecord(number, now, accuracy, 0.5, ()))
        runs.append(Run(Path("run"), "x", {}, tuple(rounds), None))
    curve = metric_over_time(RunGroup("x", tuple(runs)))
    assert list(curve.x) == sorted(curve.x)
    for low, mean, high in zip(curve.low, curve.mean, curve.high, strict=True):
        assert low - 1e-9 <= mean <= high + 1e-9
    ends = [each[-1][1] for each in steps]
    assert curve.mean[-1] == pytest.approx(sum(ends) / len(ends))


def test_workers_have_means_over_the_runs_that_had_them(make_run: MakeRun) -> None:
    one = make_run("a", seed=1, rounds=2, round_s=100.0)
    two = make_run("b", seed=2, rounds=2, round_s=200.0)
    late = replace(two, rounds=(replace(two.rounds[0], workers=()), two.rounds[1]))
    times = update_times(RunGroup("x", (one, late)))
    assert times[0].x == (1, 2)
    assert times[0].mean == pytest.approx((100, 150))
    assert (times[0].low[1], times[0].high[1]) == pytest.approx((100, 200))


def test_the_last_retention_is_that_of_the_end(make_run: MakeRun) -> None:
    runs = tuple(make_run(str(seed), strategy="adaptcl", seed=seed, adapts=True) for seed in (1, 2))
    kept = last_retention(RunGroup("x", runs))
    assert [kept[worker].mean[0] for worker in sorted(kept)] == pytest.approx([0.4, 0.6, 0.8, 1.0])
