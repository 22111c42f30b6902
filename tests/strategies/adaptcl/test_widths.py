"""Sub-models whose widths are multiples of what hardware likes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.strategies.adaptcl.conftest import Engine, Engines, Lines


def widths(run: Engine) -> list[list[int]]:
    """How many units of each layer each worker has."""
    layers = run.strategy.units.layers
    return [
        [int(kept[list(layer.units)].sum()) for layer in layers]
        for kept in run.strategy.sub_models()
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("multiple", "order"),
    [(1, "taylor"), (2, "cig-bnscalor"), (16, "balanced-bnscalor"), (16, "no-constant")],
)
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
    settings = {"grow": True, "width_multiple": 16, "min_pruned_rate": 0.001, "width": 200}
    run = engine(line(33, 30, 30), least_speed_up=1.0, **settings).until(60)
    assert run.retentions()[0] < 1
    assert all(rate >= 0 for rates in run.rates().values() for rate in rates)


def test_the_multiple_goes_with_every_pruning(engine: Engines, line: Lines) -> None:
    tasks = engine(line(60, 40, 20), width_multiple=8).until(10).tasks
    assert {task.pruning.width_multiple for task in tasks if task.pruning} == {8}
