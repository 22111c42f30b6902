"""Prunings that hurt: the user is told, or the group lasso is given time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adaptcl.errors import SettingError
from adaptcl.pruning import importance_lost
from adaptcl.records import WorkerRecord
from adaptcl.strategies.adaptcl.pruning_warnings import harmful_prunings
from adaptcl.strategies.adaptcl.server import AdaptCL, AdaptCLSettings
from adaptcl.training import Task
from adaptcl.units import State

if TYPE_CHECKING:
    from tests.strategies.adaptcl.conftest import Changed, Engines, Lines

SCALES = ("1.weight", "4.weight")
"""The BN scales of the model's two layers."""


def test_a_harmful_pruning_is_told_in_one_sentence(engine: Engines, line: Lines) -> None:
    run = engine(line(60, 40, 20), harm=(0.35, 1.4)).until(4)
    assert [c.warnings for c in run.closed[:2]] == [(), ()]
    (warning,) = run.closed[2].warnings
    assert "2 of 3 workers" in warning
    assert "35%" in warning
    assert "1.40" in warning
    # The worker that cut less, down to 0.79, needs more to cut away 0.2 of its importance at most.
    assert run.closed[2].workers[1].retention == pytest.approx(0.79, abs=0.01)
    assert "Raise `min_retention` to 0.88 " in warning
    assert "strength" in warning
    assert [w.importance_lost for w in run.closed[2].workers] == [0.35, 0.35, None]


@pytest.mark.parametrize("harm", [(0.1, 1.4), (0.35, 0.2), (0.1, 0.2), (0.49, 0.2)])
def test_a_pruning_that_cuts_little_or_changes_little_is_not_worth_a_word(
    engine: Engines, line: Lines, harm: tuple[float, float]
) -> None:
    run = engine(line(60, 40, 20), harm=harm).until(13)
    assert all(closed.warnings == () for closed in run.closed)
    assert run.closed[2].workers[0].loss_jump == pytest.approx(harm[1])


def test_how_much_importance_may_go_is_a_setting(engine: Engines, line: Lines) -> None:
    run = engine(line(60, 40, 20), max_importance_lost=0.5, harm=(0.35, 1.4)).until(4)
    assert run.closed[2].warnings == ()


def test_most_of_the_importance_is_told_of_even_if_there_is_no_loss_to_rise(
    engine: Engines, line: Lines
) -> None:
    run = engine(line(60, 40, 20), harm=(0.92, 0.0)).until(4)
    (warning,) = run.closed[2].warnings
    assert "92%" in warning
    assert "Raise `min_retention` to 0.88 " in warning
    assert "loss" not in warning


def test_who_allows_all_importance_to_go_hears_nothing_of_it(engine: Engines, line: Lines) -> None:
    run = engine(line(60, 40, 20), max_importance_lost=1.0, harm=(0.92, 2.0)).until(13)
    assert all(closed.warnings == () for closed in run.closed)


def test_where_little_can_be_cut_the_retention_to_set_is_above_what_is_never_cut() -> None:
    # All that can be cut of this model, a sixth of it, went at once.
    record = WorkerRecord(3, 1.0, 1.0, 1.0, 3.0, 0.834, 0.166, 0.93, 0.1)
    (warning,) = harmful_prunings(2, [record], 0.2)
    assert "Raise `min_retention` to 0.92 to cut less." in warning


@given(st.floats(0.05, 0.99), st.floats(0.01, 0.5), st.floats(0.51, 1.0), st.floats(0, 5))
def test_the_retention_to_set_is_one_that_cuts_less(
    kept: float, rate: float, lost: float, jump: float
) -> None:
    record = WorkerRecord(0, 1.0, 1.0, 1.0, 3.0, kept * (1 - rate), rate, lost, jump)
    (warning,) = harmful_prunings(2, [record], 0.2)
    named = float(warning.split("min_retention` to ")[1].split(" ")[0])
    assert record.retention < named <= kept + 0.011


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"first_pruning": 100},
            "round 100, after the last of 99 rounds; set `first_pruning` to 9",
        ),
        ({"pruning_interval": 200}, "would be in round 200, after the last of 99 rounds"),
    ],
)
def test_a_run_too_short_to_prune_in_says_so_once(
    engine: Engines, line: Lines, settings: dict[str, int], sentence: str
) -> None:
    run = engine(line(60, 40, 20), **settings).until(9)
    (warning,) = run.closed[0].warnings
    assert sentence in warning
    assert all(closed.warnings == () for closed in run.closed[1:])
    last = engine(line(60, 40, 20), first_pruning=99).until(3)
    assert last.closed[0].warnings == ()


def shrinking(task: Task) -> State:
    """What the group lasso does: the scales of half the units fade, the faster the stronger."""
    factor = torch.ones(40)
    factor[20:] = 0.9**task.lasso_scale
    return {
        name: tensor * factor if name in SCALES and bool(task.kept.all()) else tensor
        for name, tensor in task.state.items()
    }


def test_a_chosen_strength_waits_and_raises_the_lasso_until_pruning_is_harmless(
    engine: Engines, line: Lines
) -> None:
    equal = {name: torch.ones(40) for name in SCALES}
    losses = {}
    for adapt in (True, False):
        run = engine(
            line(60, 20, 20),
            state=equal,
            changed=shrinking,
            pruning="cig-bnscalor",
            adapt_strength=adapt,
            max_importance_lost=0.1,
            pruning_interval=6,
        )
        while not run.rates():
            run.until(run.strategy.round + 1)
        pruning = next(task for task in run.tasks if task.pruning)
        assert pruning.pruning is not None
        assert pruning.pruning.importance is not None
        losses[adapt] = importance_lost(
            pruning.kept, run.strategy.kept[0], pruning.pruning.importance
        )
        scales = [task.lasso_scale for task in run.tasks if task.worker == 0]
        if adapt:
            assert pruning.round == 9
            assert scales[:9] == pytest.approx([1, 1, 1, 1, 1, 1.5, 1.5**2, 1.5**3, 1])
        else:
            assert pruning.round == 6
            assert set(scales) == {1.0}
    assert losses[True] <= 0.1 < losses[False]


def test_a_chosen_strength_does_not_wait_longer_than_an_interval(
    engine: Engines, line: Lines
) -> None:
    run = engine(
        line(60, 40, 20),
        state={name: torch.ones(40) for name in SCALES},
        changed=shrinking,
        adapt_strength=True,
        max_importance_lost=0.0,
    ).until(8)
    scales = [task.lasso_scale for task in run.tasks if task.worker == 0]
    assert scales[:6] == pytest.approx([1, 1, 1.5, 1.5**2, 1.5**3, 1])
    assert list(run.rates()) == [6]


def test_a_chosen_strength_does_not_wait_for_a_lasso_that_changes_nothing(
    engine: Engines, line: Lines
) -> None:
    run = engine(line(60, 40, 20), adapt_strength=True, max_importance_lost=0.0).until(6)
    scales = [task.lasso_scale for task in run.tasks if task.worker == 0]
    assert scales[:5] == [1, 1, 1.5, 1, 1]
    assert list(run.rates()) == [4]


def test_a_chosen_strength_judges_by_the_order_that_will_be_used(
    engine: Engines, line: Lines, shuffled_scales: Changed
) -> None:
    # The order is that of the first pruning; the scales have been turned upside down since.
    run = engine(
        line(60, 40, 20),
        changed=shuffled_scales,
        adapt_strength=True,
        max_importance_lost=0.2,
        state={name: torch.linspace(0.01, 1, 40) for name in SCALES},
    ).until(3)
    assert run.open[0].pruning is not None
    run.until(6)
    assert run.open[0].pruning is None
    assert run.open[0].lasso_scale == 1.5


def test_there_is_no_lasso_to_choose_the_strength_of_without_strength(
    engine: Engines, line: Lines
) -> None:
    job = engine(line(60, 40, 20)).strategy.job
    dense = replace(job, recipe=replace(job.recipe, strength=0.0))
    with pytest.raises(SettingError, match="strength is 0"):
        AdaptCL(dense, AdaptCLSettings(adapt_strength=True))
    AdaptCL(dense, AdaptCLSettings())


def test_a_harmless_pruning_does_not_wait(engine: Engines, line: Lines) -> None:
    run = engine(line(60, 40, 20), adapt_strength=True, max_importance_lost=1.0).until(8)
    assert {task.lasso_scale for task in run.tasks} == {1.0}
    assert min(run.rates()) == 3


def test_a_table_waits_without_losing_a_row(engine: Engines, line: Lines) -> None:
    rows = ((0.5, 0.3, 0.0), (0.2, 0.0, 0.1))
    run = engine(
        line(1, 1, 1), adapt_strength=True, max_importance_lost=0.0, pruned_rates=rows
    ).until(30)
    assert [tuple(rates) for rates in run.rates().values()] == list(rows)
