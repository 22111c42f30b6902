"""Sub-models whose widths are multiples of what hardware likes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from adaptcl.pruning import importance_lost, prune

if TYPE_CHECKING:
    from tests.strategies.adaptcl.conftest import Engine, Engines, Lines


def widths(run: Engine) -> list[list[int]]:
    """How many units of each layer each worker has."""
    layers = run.strategy.units.layers
    return [
        [int(kept[list(layer.units)].sum()) for layer in layers]
        for kept in run.strategy.sub_models()
    ]


@pytest.mark.parametrize("order", ["cig-bnscalor", "balanced-bnscalor", "no-constant", "taylor"])
@pytest.mark.parametrize("multiple", [1, 2, 16])
def test_pruned_widths_are_multiples_and_all_workers_still_become_equally_fast(
    engine: Engines, line: Lines, multiple: int, order: str
) -> None:
    run = engine(line(90, 60, 30), width_multiple=multiple, pruning=order, width=200)
    for round in range(2, 30):
        run.until(round)
        assert all(width % min(multiple, 4) == 0 for row in widths(run) for width in row)
    assert min(widths(run)[0]) < 200
    assert run.spread()[-1] < 0.03
    settled = widths(run)
    assert widths(run.until(60)) == settled


def test_grown_widths_are_multiples_too(engine: Engines, changing: Lines) -> None:
    times = changing((90, 30, 30), (45, 30, 30), at=19)
    run = engine(times, grow=True, width_multiple=16, width=200).until(18)
    small = sum(widths(run)[0])
    for round in range(19, 60):
        run.until(round)
        assert all(width % 4 == 0 for width in widths(run)[0])
    assert small < sum(widths(run)[0]) < 400
    assert run.spread()[-1] < 0.03


def test_less_than_a_block_to_grow_by_is_not_put_on_record_as_growing(
    engine: Engines, line: Lines
) -> None:
    # Every growth that is wanted is one percent, and a block is almost two.
    run = engine(
        line(33, 30, 30), grow=True, width_multiple=16, min_pruned_rate=0.001, width=200
    ).until(60)
    assert run.retentions()[0] < 1
    assert all(rate >= 0 for rates in run.rates().values() for rate in rates)


def test_the_multiple_goes_with_every_pruning(engine: Engines, line: Lines) -> None:
    tasks = engine(line(60, 40, 20), width_multiple=8).until(10).tasks
    assert {task.pruning.width_multiple for task in tasks if task.pruning} == {8}


def test_waiting_for_the_lasso_looks_at_the_pruning_that_would_be_carried_out(
    engine: Engines, line: Lines
) -> None:
    # The order comes to large scales within a block, so a whole block costs more than its part.
    units = engine(line(30, 30, 30), width=200).strategy.units
    scales = torch.full((200,), 0.01)
    scales[100:] = 1.0
    importance = torch.cat([scales, scales])
    lost = importance_lost(
        units.everything(),
        prune(units, units.everything(), importance, 0.3, width_multiple=16),
        importance,
    )
    for limit, waits in ((lost - 1e-6, True), (lost + 1e-6, False)):
        run = engine(
            line(30, 30, 30),
            width=200,
            state={"1.weight": scales, "4.weight": scales.clone()},
            pruning="cig-bnscalor",
            adapt_strength=True,
            max_importance_lost=limit,
            pruned_rates=((0.3,) * 3,),
            width_multiple=16,
        ).until(3)
        assert (run.open[0].pruning is None) == waits
