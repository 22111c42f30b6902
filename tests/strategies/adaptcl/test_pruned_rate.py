"""Algorithm 2 as the paper prints it, and Newton's interpolation."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptcl.engines.bandwidths import bandwidths
from adaptcl.strategies.adaptcl.pruned_rate import (
    RateSettings,
    divided_differences,
    interpolate,
    pruned_rate,
    pruned_rates,
)
from adaptcl.strategies.adaptcl.speed_history import Point

if TYPE_CHECKING:
    from tests.strategies.adaptcl.conftest import Engines, Lines

PAPER = RateSettings()

# The paper's printed example: ten workers with VGG16, B_max = 5 MB, σ = 2 (Sec. IV, "Results and
# Analysis": ρ_max = 0.5, γ_min = 0.1; Appendix, "Configurations": W = 10, PI = 10, α = 2).

BANDWIDTHS = (1.63, 1.77, 1.93, 2.11, 2.34, 2.62, 2.97, 3.43, 4.07, 5.0)
"""Appendix, table "Bandwidth setting of workers when B_max=5M (VGG16)", row H = 0.32, σ = 2."""
MODEL_SIZE, TRAINING_TIME = 57.19, 24.1
"""s_model, by the parameter counts of the appendix (29.94M is 47.64 % less), and t_train, by the
same table: 2·s_model/1.63 + t_train is twice 2·s_model/5 + t_train."""


def printed_update_time(worker: int, retention: float) -> float:
    """Appendix, the equation of B_w solved for φ_w; only what travels shrinks."""
    return 2 * MODEL_SIZE * retention / BANDWIDTHS[worker] + TRAINING_TIME


def first_rates() -> list[float]:
    """Line 9 by hand.

    The appendix spreads update times evenly: φ_w = φ_min·(1 + k/9) with k = W − w. So
    P_w = (φ_w − φ_min) / (2·φ_w) = k / (2·(9 + k)): 1/4 for the slowest worker, 0 for the fastest.
    """
    return [k / (2 * (9 + k)) for k in range(9, -1, -1)]


def test_the_papers_ten_workers_become_equal_in_three_prunings() -> None:
    kept = [1.0] * 10
    histories: dict[int, list[Point]] = {worker: [] for worker in range(10)}
    rates = []
    for _ in range(4):
        for worker, points in histories.items():
            points[:] = [p for p in points if p.retention != kept[worker]]
            points.append(Point(kept[worker], printed_update_time(worker, kept[worker])))
        rates.append(list(pruned_rates(histories, PAPER).values()))
        kept = [g * (1 - rate) for g, rate in zip(kept, rates[-1], strict=True)]
    assert rates[0] == pytest.approx(first_rates(), abs=0.003)
    # Times are straight in γ, so line 4 is exact: worker w is as fast as the fastest at
    # γ = B_w / 5. For the slowest P = (0.75 − 0.326) / 0.75 = 0.565, but ρ_max allows only 0.5.
    targets = [bandwidth / 5 for bandwidth in BANDWIDTHS]
    exact = [1 - g / (1 - p) for g, p in zip(targets, rates[0], strict=True)]
    assert rates[1] == pytest.approx([min(rate, 0.5) for rate in exact])
    assert [rate > 0.5 for rate in exact] == [True] * 3 + [False] * 7
    # Of these three the first two go on to 0.326 and 0.354 in a third pruning. The last of them,
    # at 0.390, is less than ρ_min = 0.02 away from its 0.386 and stays.
    third = [1 - 0.326 / 0.375, 1 - 0.354 / 0.382]
    assert rates[2] == pytest.approx([*third, *[0.0] * 8], abs=0.003)
    assert rates[3] == [0.0] * 10
    assert kept == pytest.approx([*targets[:2], 0.390, *targets[3:]], abs=0.001)


def test_as_printed_the_slowest_worker_of_sigma_10_ends_near_the_papers_seven_percent() -> None:
    links = bandwidths(MODEL_SIZE, 5, TRAINING_TIME, 10, 10)
    kept = [1.0] * 10
    histories: dict[int, list[Point]] = {worker: [] for worker in range(10)}
    for _ in range(8):
        for worker, points in histories.items():
            points[:] = [p for p in points if p.retention != kept[worker]]
            time = 2 * MODEL_SIZE * kept[worker] / links[worker] + TRAINING_TIME
            points.append(Point(kept[worker], time))
        rates = pruned_rates(histories, PAPER)
        kept = [g * (1 - rates[worker]) for worker, g in enumerate(kept)]
    assert kept[0] == pytest.approx(0.0698, abs=0.002)


def test_the_setting_runs_the_papers_example_as_printed(engine: Engines) -> None:
    run = engine(
        lambda worker, kept, _: printed_update_time(worker, kept),
        workers=10,
        width=200,
        width_multiple=1,
        literal_algorithm_2=True,
    ).until(15)
    assert run.rates()[3] == pytest.approx(first_rates(), abs=0.003)
    # A unit is half a percent of this model, so later prunings are only nearly those of the print.
    assert list(run.rates()) == [3, 6, 9]
    assert run.rates()[6][0] == 0.5
    assert run.retentions() == pytest.approx([b / 5 for b in BANDWIDTHS], abs=0.01)
    assert run.spread()[-1] < 0.01


# Line by line -----------------------------------------------------------------------------------


def test_line_1_takes_the_shortest_time_also_of_a_pruned_worker() -> None:
    overshot = [Point(1.0, 90.0), Point(0.5, 40.0)]
    rates = pruned_rates({0: overshot, 1: [Point(1.0, 50.0)]}, PAPER)
    assert rates == {0: 0.0, 1: pytest.approx((50 - 40) / (2 * 50))}
    assert pruned_rates({}, PAPER) == {}


def test_line_4_goes_through_all_points() -> None:
    points = [Point(1.0, 95.0), Point(0.9, 80.0), Point(0.6, 60.0), Point(0.5, 50.0)]
    points.append(Point(0.3, 40.0))
    wanted = interpolate([p.update_time for p in points], [p.retention for p in points], 39.0)
    assert 0.1 < wanted < 0.28
    assert pruned_rate(points, 39.0, PAPER) == pytest.approx(1 - wanted / 0.3)


def test_line_4_takes_the_newest_of_two_equal_times() -> None:
    # One point is left, a constant, so nothing is pruned.
    assert pruned_rate([Point(1.0, 40.0), Point(0.8, 40.0)], 20.0, PAPER) == 0
    points = [Point(0.9, 65.0), Point(1.0, 80.0), Point(0.8, 65.0)]
    assert pruned_rate(points, 50.0, PAPER) == pytest.approx(0.25)


def test_line_5_looks_at_the_smallest_retention_but_line_7_goes_below_it() -> None:
    # γ = 0.13 at 30 s and 0.26 at 40 s; 27 s need γ = 0.091, below γ_min = 0.1.
    points = [Point(0.26, 40.0), Point(0.13, 30.0)]
    assert 0.13 * (1 - pruned_rate(points, 27.0, PAPER)) == pytest.approx(0.091)
    points = [Point(0.22, 40.0), Point(0.11, 30.0)]
    assert pruned_rate(points, 27.0, PAPER) == 0


def test_line_9_knows_neither_the_smallest_step_nor_the_smallest_retention() -> None:
    strict = replace(PAPER, min_retention=0.99)
    assert pruned_rate([Point(1.0, 52.0)], 50.0, strict) == pytest.approx(2 / (2 * 52))
    assert pruned_rate([Point(1.0, 80.0)], 50.0, replace(strict, alpha=4.0)) == 30 / (4 * 80)


def test_line_10_holds_for_every_pruning() -> None:
    limited = replace(PAPER, max_pruned_rate=0.1)
    assert pruned_rate([Point(1.0, 80.0)], 20.0, limited) == 0.1
    assert pruned_rate([Point(1.0, 80.0), Point(0.8, 65.0)], 25.0, limited) == 0.1


@given(
    st.lists(
        st.lists(
            st.builds(Point, st.floats(0.01, 1), st.floats(0.1, 1000)), min_size=1, max_size=8
        ),
        max_size=4,
    )
)
def test_every_rate_is_between_zero_and_the_largest(histories: list[list[Point]]) -> None:
    rates = pruned_rates(dict(enumerate(histories)), PAPER)
    assert all(0 <= rate <= PAPER.max_pruned_rate for rate in rates.values())


# The setting in a run ---------------------------------------------------------------------------


def test_as_printed_a_time_that_hardly_depends_on_the_size_is_chased(engine: Engines) -> None:
    def times(worker: int, kept: float, round: int) -> float:
        return 20 * (0.99 + 0.01 * kept) if worker == 1 else 10.0

    as_printed, guarded = (
        engine(times, width_multiple=1, literal_algorithm_2=literal).until(25)
        for literal in (True, False)
    )
    assert guarded.retentions()[1] == pytest.approx(0.75, abs=0.02)
    # γ_min = 0.1 is only in line 5: a step from above it may end far below.
    assert as_printed.retentions()[1] < 0.1
    assert not any(closed.warnings for closed in as_printed.closed)


def test_as_printed_conditions_that_change_are_not_forgotten(
    engine: Engines, changing: Lines
) -> None:
    times = changing((60, 40, 20), (80, 40, 20), at=21)
    run = engine(times, literal_algorithm_2=True).until(26)
    assert len(run.strategy.snapshot()["_speeds"]["points"][0]) > 2


def test_nothing_grows_in_algorithm_2(engine: Engines, changing: Lines) -> None:
    times = changing((90, 30, 30), (30, 30, 30), at=19)
    run = engine(times, literal_algorithm_2=True, grow=True).until(46)
    assert all(rate >= 0 for rates in run.rates().values() for rate in rates)


# Newton's interpolation -------------------------------------------------------------------------


@st.composite
def points(draw: st.DrawFn) -> tuple[list[float], list[float]]:
    """Up to five points whose xs are well apart, in any order."""
    xs = draw(st.lists(st.integers(1, 40), min_size=1, max_size=5, unique=True))
    ys = draw(st.lists(st.floats(-10, 10), min_size=len(xs), max_size=len(xs)))
    return [x / 4 for x in xs], ys


def test_newtons_form_worked_out_by_hand() -> None:
    # γ over φ: f[90] = 1, f[90,70] = (0.7 − 1)/(70 − 90) = 0.015,
    # f[70,50] = (0.5 − 0.7)/(50 − 70) = 0.01, f[90,70,50] = (0.01 − 0.015)/(50 − 90) = 0.000125;
    # at 45: 1 + 0.015·(45 − 90) + 0.000125·(45 − 90)·(45 − 70) = 1 − 0.675 + 0.140625.
    times, retentions = [90.0, 70.0, 50.0], [1.0, 0.7, 0.5]
    assert divided_differences(times, retentions) == pytest.approx([1, 0.015, 0.000125])
    assert interpolate(times, retentions, 45) == pytest.approx(0.465625)
    assert interpolate([3.0], [0.5], 100.0) == 0.5


@given(points())
def test_the_polynomial_goes_through_every_point(drawn: tuple[list[float], list[float]]) -> None:
    xs, ys = drawn
    for x, y in zip(xs, ys, strict=True):
        assert interpolate(xs, ys, x) == pytest.approx(y, abs=1e-6)


@pytest.mark.slow
@given(points(), st.floats(0, 11))
def test_it_equals_lagrange_interpolation(
    drawn: tuple[list[float], list[float]], at: float
) -> None:
    xs, ys = drawn
    bases = [
        np.prod([(at - other) / (x - other) for j, other in enumerate(xs) if j != i])
        for i, x in enumerate(xs)
    ]
    lagrange = float(np.dot(bases, ys))
    scale = 1 + float(np.abs(bases).sum()) * max(map(abs, ys), default=0)
    assert interpolate(xs, ys, at) == pytest.approx(lagrange, abs=1e-9 * scale)
