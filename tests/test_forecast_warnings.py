"""What a forecast warns of, because the run would and no training is needed to know."""

from __future__ import annotations

import torch
from torch import nn

from adaptcl import config
from adaptcl.engines.forecast import Forecast, forecast
from adaptcl.report import forecast_table
from adaptcl.units import trace


def foreseen(model: nn.Module, **settings: object) -> Forecast:
    values = {"workers": 4, "rounds": 9, "sigma": 10.0, "strategy": "adaptcl", **settings}
    chosen = config.configure(config.override(config.preset("default"), values))
    return forecast(chosen, trace(model, torch.zeros(2, 20)), [10] * 4)


def test_a_model_that_is_too_little_cuttable_for_its_workers_is_told_of_once() -> None:
    # What a layer norm mixes is never cut: of 40 and 10 units only the ten.
    fixed = nn.Sequential(
        nn.Linear(20, 40), nn.LayerNorm(40), nn.ReLU(), nn.Linear(40, 10), nn.ReLU(),
        nn.Linear(10, 10),
    )  # fmt: skip
    found = foreseen(fixed)
    (warning,) = found.warnings
    assert "of this model's parameters can be cut: worker" in warning
    assert f"cannot get below {min(found.retention):.0%}" in warning
    assert forecast_table([found]).notes == [f"adaptcl: {warning}"]


def test_a_model_that_can_be_cut_far_enough_is_not() -> None:
    found = foreseen(nn.Sequential(nn.Linear(20, 60), nn.ReLU(), nn.Linear(60, 10)), sigma=2.0)
    assert min(found.retention) < 1
    assert found.warnings == ()
    assert forecast_table([found]).notes == []


def test_a_run_that_ends_before_its_first_pruning_is_told_of() -> None:
    model = nn.Sequential(nn.Linear(20, 60), nn.ReLU(), nn.Linear(60, 10))
    (warning,) = foreseen(model, first_pruning=10).warnings
    assert warning.startswith("Nobody will prune: the first pruning would be in round 10, after")
    (warning,) = foreseen(model, rounds=1).warnings
    assert warning.endswith("would be in round 2, after the only round; raise `rounds`.")
    assert foreseen(model, rounds=2).warnings == ()
