"""Workers that become slower or faster while the run goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor

from adaptcl.units import Kept, UnitMap

if TYPE_CHECKING:
    from tests.strategies.adaptcl.conftest import Changed, Engines, Lines

SCALES = ("1.weight", "4.weight")
"""The BN scales of the model's two layers."""


def test_a_worker_that_becomes_slower_prunes_until_all_are_equal_again(
    engine: Engines, changing: Lines
) -> None:
    run = engine(changing((40, 40, 40), (120, 40, 40), at=13)).until(37)
    assert min(run.rates()) >= 15
    assert run.spread()[12] > 0.25
    assert run.spread()[-1] < 0.05
    assert run.retentions()[0] == pytest.approx(1 / 3, abs=0.04)
    assert run.retentions()[1:] == [1, 1]


def test_what_was_learned_before_a_change_is_forgotten(engine: Engines, changing: Lines) -> None:
    run = engine(changing((60, 40, 20), (80, 40, 20), at=21)).until(20)
    before = run.retentions()
    run.until(26)
    now = 10 + 80 * before[0]
    # One point is left, so the cautious first rule decides.
    assert run.rates()[24][0] == pytest.approx((now - 30) / (2 * now))
    run.until(50)
    assert run.retentions() == pytest.approx([0.25, *before[1:]], abs=0.03)


def test_a_worker_that_recovers_grows_back_to_the_whole_model(
    engine: Engines, changing: Lines
) -> None:
    run = engine(changing((90, 30, 30), (30, 30, 30), at=19), grow=True).until(18)
    small = run.strategy.sub_models()[0].clone()
    assert run.spread()[-1] < 0.05
    assert run.retentions()[0] < 0.4
    run.until(46)
    assert run.retentions()[0] == 1
    assert run.spread()[-1] < 0.05
    assert run.retentions()[1:] == [1, 1]
    grown = [round for round, rates in run.rates().items() if rates[0] < 0]
    assert grown
    assert min(grown) >= 19
    assert not (small & ~run.strategy.sub_models()[0]).any()


def test_growing_never_cuts_and_brings_back_the_values_of_the_global_model(
    engine: Engines, changing: Lines
) -> None:
    # An order that changes would like to exchange units for others.
    run = engine(
        changing((90, 30, 30), (60, 30, 30), at=19), grow=True, pruning="no-constant"
    ).until(18)
    for round in range(19, 40):
        before = run.strategy.sub_models()[0].clone()
        run.until(round)
        task = run.open[0]
        if (
            not torch.equal(task.kept, before)
            and task.pruning is None
            and bool((task.kept & ~before).any())
        ):
            assert not (before & ~task.kept).any()
            rows = task.kept[:40]
            assert torch.equal(task.state["0.weight"], run.strategy.state["0.weight"][rows])
            break
    else:
        pytest.fail("nothing grew")


@pytest.mark.parametrize("at", [6, 8])
def test_a_change_before_the_new_size_is_measured_does_not_hide_in_the_curve(
    engine: Engines, changing: Lines, at: int
) -> None:
    # Worker 0 prunes in rounds 3 and 6; whenever it recovers, it has to grow back to the whole
    # model, which is then the fastest of all.
    run = engine(changing((110, 30, 30), (20, 30, 30), at=at), grow=True).until(6)
    assert run.open[0].pruning is not None
    run.until(46)
    assert run.retentions() == pytest.approx([1, 2 / 3, 2 / 3], abs=0.03)
    assert run.spread()[-1] < 0.03


@pytest.mark.slow
@pytest.mark.parametrize("at", [3, 7])
def test_nobody_is_cut_too_small_along_a_line_between_two_conditions(
    engine: Engines, changing: Lines, at: int
) -> None:
    run = engine(changing((120, 40, 20), (60, 40, 20), at=at)).until(50)
    assert run.retentions()[0] == pytest.approx(20 / 60, abs=0.05)
    assert run.spread()[-1] < 0.05


@pytest.mark.parametrize("order", ["cig-bnscalor", "taylor"])
def test_units_come_back_by_the_order_they_went_in_or_by_their_scales_where_workers_have_their_own(
    engine: Engines, changing: Lines, shuffled_scales: Changed, order: str
) -> None:
    times = changing((90, 30, 30), (45, 30, 30), at=19)
    run = engine(times, grow=True, pruning=order, changed=shuffled_scales, width_multiple=1).until(
        18
    )
    units, first = run.strategy.units, next(task.pruning for task in run.tasks if task.pruning)
    for round in range(19, 40):
        before = run.strategy.sub_models()[0].clone()
        run.until(round)
        task = run.open[0]
        if bool((task.kept & ~before).any()):
            break
    else:
        pytest.fail("nothing grew")
    scales = torch.cat([run.strategy.state[name] for name in SCALES]).abs()
    importance = scales if first.importance is None else first.importance
    assert torch.equal(task.kept, fit_around(units, before, importance, int(task.kept.sum())))
    if first.importance is not None:
        assert not torch.equal(task.kept, fit_around(units, before, scales, int(task.kept.sum())))


def fit_around(units: UnitMap, kept: Kept, importance: Tensor, count: int) -> Kept:
    """The units there are, and the most important others until there are so many."""
    missing = (~kept).nonzero().flatten()
    back = missing[importance[missing].argsort(descending=True, stable=True)]
    grown = kept.clone()
    grown[back[: count - int(kept.sum())]] = True
    return grown


def test_without_the_setting_nothing_grows(engine: Engines, changing: Lines) -> None:
    run = engine(changing((90, 30, 30), (30, 30, 30), at=19)).until(46)
    assert all(rate >= 0 for rates in run.rates().values() for rate in rates)


def test_down_and_up_again_without_oscillation(engine: Engines) -> None:
    slopes: Mapping[int, Sequence[float]] = {0: (30, 30, 30), 1: (90, 30, 30), 2: (30, 30, 30)}

    def times(worker: int, kept: float, round: int) -> float:
        return 10 + slopes[min(2, round // 21)][worker] * kept

    run = engine(times, grow=True).until(63)
    spread = run.spread()
    # Four pruning intervals after each change.
    assert max(spread[21 + 12 : 41]) < 0.05
    assert max(spread[42 + 12 :]) < 0.05
    changes = [rates[0] for rates in run.rates().values()]
    turns = sum(1 for a, b in pairwise(changes) if a * b < 0)
    assert turns == 1
