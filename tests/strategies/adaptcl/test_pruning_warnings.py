"""Warnings about prunings: that one did harm, or that none will make rounds faster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from adaptcl.pruning.worker_orders import Taylor
from adaptcl.records import WorkerRecord
from adaptcl.strategies.adaptcl.pruning_warnings import (
    WarningsOnce,
    warn_cannot_get_smaller,
    warn_harmful_prunings,
)
from adaptcl.units import trace

if TYPE_CHECKING:
    from tests.strategies.adaptcl.conftest import Engines, Lines

SCALES = ("1.weight", "4.weight")
"""The BN scales of the model's two layers."""


class Bare(nn.Module):
    """Its first layer is a parameter of the model itself."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = nn.Parameter(torch.ones(3, 8)), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(x @ self.hidden))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("model", "example", "name"),
    [
        (Bare(), torch.zeros(2, 3), "the model itself"),
        (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), torch.zeros(2, 5, 8), "self_attn"),
    ],
)
def test_layers_that_an_order_cannot_measure_are_told_once(
    model: nn.Module, example: Tensor, name: str
) -> None:
    units, once = trace(model, example), WarningsOnce()
    assert once.unmeasured("l1", units) == once.unmeasured("my:Order", units) == ()
    (warning,) = once.unmeasured("taylor", units)
    assert name in warning
    assert once.unmeasured("taylor", units) == ()


def test_only_who_prunes_is_told_of_layers_without_feature_maps(
    engine: Engines, line: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Taylor, "unmeasured", lambda _, units: units.layers)
    settings = {"pruning": "taylor", "least_speed_up": 1.0}
    equal, unequal = engine(line(40, 40, 40), **settings), engine(line(60, 40, 20), **settings)
    assert not any(closed.warnings for closed in equal.until(4).closed)
    for _ in range(2):
        unequal.until(3)
    told = [warning for closed in unequal.closed for warning in closed.warnings]
    assert [warning for warning in told if "feature maps" in warning] == told[:1]


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


def test_nothing_is_decided_or_told_of_after_the_last_round(engine: Engines, line: Lines) -> None:
    of_ending_early, after_the_last = (
        engine(line(60, 40, 20), rounds=2, least_speed_up=9).until(3).closed
    )
    assert "Nobody will prune" in of_ending_early.warnings[0]
    assert after_the_last.warnings == ()


def test_most_of_the_importance_is_told_of_even_if_there_is_no_loss_to_rise(
    engine: Engines, line: Lines
) -> None:
    run = engine(line(60, 40, 20), harm=(0.92, 0.0)).until(4)
    (warning,) = run.closed[2].warnings
    assert "92%" in warning
    assert "Raise `min_retention` to 0.83 " in warning
    assert "loss" not in warning


def test_who_allows_all_importance_to_go_hears_nothing_of_it(engine: Engines, line: Lines) -> None:
    run = engine(line(60, 40, 20), max_importance_lost=1.0, harm=(0.92, 2.0)).until(13)
    assert all(closed.warnings == () for closed in run.closed)


def test_where_little_can_be_cut_the_retention_to_set_is_above_what_is_never_cut() -> None:
    # All that can be cut of this model, a sixth of it, went at once.
    record = WorkerRecord(3, 1.0, 1.0, 1.0, 3.0, 0.834, 0.166, 0.93, 0.1)
    (warning,) = warn_harmful_prunings(2, [record], 0.2)
    assert "Raise `min_retention` to 0.87 to cut less." in warning


@given(st.floats(0.05, 0.99), st.floats(0.01, 0.5), st.floats(0.76, 1.0), st.floats(0, 5))
def test_the_retention_to_set_is_one_that_cuts_less(
    kept: float, rate: float, lost: float, jump: float
) -> None:
    record = WorkerRecord(0, 1.0, 1.0, 1.0, 3.0, kept * (1 - rate), rate, lost, jump)
    (warning,) = warn_harmful_prunings(2, [record], 0.2)
    named = float(warning.split("min_retention` to ")[1].split(" ")[0])
    assert record.retention < named <= kept + 0.011


def test_equal_workers_are_not_worth_a_word(engine: Engines, line: Lines) -> None:
    run = engine(line(40, 40, 40)).until(20)
    assert all(closed.warnings == () for closed in run.closed)


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


def test_where_blocks_of_units_are_what_stops_a_worker_that_is_told_too() -> None:
    told = warn_cannot_get_smaller(0.41, 0.373, [0, 1])
    assert "workers 0 and 1 cannot get below 41% (37% with `width_multiple` 1), but would" in told
    assert "width_multiple" not in warn_cannot_get_smaller(0.412, 0.408, [0])
