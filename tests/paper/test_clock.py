"""Telling the time of a run in another environment, against a simulation in that environment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adaptcl.config import Config, configure
from paper.clock import reclocked
from paper.one_run import carry_out
from paper.provenance import Provenance
from paper.result import RunResult

MakeUp = Callable[..., RunResult]

SHORT = {
    "strategy": "fedavg-s",
    "model": "small",
    "data": "digits",
    "workers": 3,
    "rounds": 3,
    "epochs": 0.5,
    "batch_size": 64,
    "evaluate_every": 2,
    "bandwidth_max": 0.05,
}


def chosen(**environment: Any) -> Config:
    return configure({**SHORT, **environment})


def simulated(config: Config, nobody: Provenance, work: Path) -> RunResult:
    return carry_out(config, nobody, work, lambda done, total: None)


@pytest.mark.parametrize(
    "other",
    [
        {"sigma": 20.0},
        {"sigma": 5.0, "bandwidth_max": 0.3, "train_time": 3.0, "flops_share": 0.8},
        {"bandwidths": (0.1, 0.4, 0.2), "speeds": (2.0, 1.0, 0.5)},
    ],
)
def test_the_clock_worked_out_is_the_clock_simulated(
    other: dict[str, Any], nobody: Provenance, tmp_path: Path
) -> None:
    made = simulated(chosen(sigma=2.0), nobody, tmp_path / "here")
    there = simulated(chosen(**other), nobody, tmp_path / "there")
    worked_out = reclocked(made, chosen(**other))
    assert worked_out.course.accuracy == there.course.accuracy
    assert worked_out.course.virtual_time_s == pytest.approx(there.course.virtual_time_s, abs=2e-3)
    assert worked_out.course.heterogeneity == pytest.approx(there.course.heterogeneity, abs=1e-5)
    assert worked_out.settings == there.settings
    for name in ("virtual_time_s", "best_virtual_time_s", "heterogeneity_first"):
        ours, theirs = (getattr(each.summary, name) for each in (worked_out, there))
        assert ours == pytest.approx(theirs)
    for ours, theirs in zip(worked_out.workers, there.workers, strict=True):
        assert ours.update_time_s == pytest.approx(theirs.update_time_s, abs=2e-3)
    assert made.course.virtual_time_s != there.course.virtual_time_s


def test_a_run_that_depends_on_its_environment_keeps_its_clock(make_up: MakeUp) -> None:
    adaptive = configure({**SHORT, "strategy": "adaptcl"})
    made = make_up(adaptive)
    assert reclocked(made, replace(adaptive)) is made
