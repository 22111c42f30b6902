"""Which units go first: the order is the strategy's, and CIG-BNscalor's holds for ever."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from adaptcl.pruning import ServerView
from adaptcl.pruning.index_orders import NoConstant

if TYPE_CHECKING:
    from tests.strategies.adaptcl.conftest import Changed, Engine, Engines, Lines


def orders(run: Engine) -> list[Tensor]:
    return [
        task.pruning.importance
        for task in run.tasks
        if task.pruning and task.pruning.importance is not None
    ]


def test_cig_bnscalor_is_the_scales_at_the_first_pruning_for_ever(
    engine: Engines, line: Lines, shuffled_scales: Changed
) -> None:
    order = "cig-bnscalor"
    run = engine(line(60, 40, 20), changed=shuffled_scales, pruning=order).until(3)
    scales = torch.cat([run.strategy.state["1.weight"], run.strategy.state["4.weight"]]).abs()
    run.until(13)
    found = orders(run)
    assert len(found) >= 4
    for importance in found:
        torch.testing.assert_close(importance, scales)


def test_the_smaller_sub_model_is_always_inside_the_larger(
    engine: Engines, line: Lines, shuffled_scales: Changed
) -> None:
    times = line(90, 70, 50, 30, 20)
    run = engine(times, workers=5, changed=shuffled_scales)
    for round in range(1, 20):
        run.until(round)
        by_size = sorted(run.strategy.sub_models(), key=lambda kept: int(kept.sum()))
        for small, large in pairwise(by_size):
            assert not (small & ~large).any()
    assert len({int(kept.sum()) for kept in run.strategy.sub_models()}) >= 4


def test_orders_that_workers_compute_come_without_importance(engine: Engines, line: Lines) -> None:
    run = engine(line(60, 40, 20), pruning="taylor").until(4)
    pruned = [task.pruning for task in run.tasks if task.pruning]
    assert len(pruned) == 2
    assert all(p.order == "taylor" and p.importance is None for p in pruned)


def test_orders_that_are_not_computed_once_are_computed_anew(engine: Engines, line: Lines) -> None:
    table = ((0.1, 0.1), (0.1, 0.1))
    first, second = orders(
        engine(line(1, 1), pruning="no-constant", pruned_rates=table, workers=2).until(7)
    )[::2]
    assert not torch.equal(first, second)


def test_an_order_is_told_how_many_prunings_there_were_before(engine: Engines, line: Lines) -> None:
    run = engine(line(1, 1), pruning="no-constant", pruned_rates=((0.1, 0.1),), workers=2).until(4)
    job = run.strategy.job
    view = ServerView(job.units, job.state, worker=0, pruning=0, seed=5)
    expected = NoConstant().importance(view)
    assert torch.equal(orders(run)[0], expected)
