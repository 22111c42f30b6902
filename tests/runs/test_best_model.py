"""The model that had the best test, kept beside the last."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import adaptcl
from adaptcl.errors import SettingError
from tests.runs.small_runs import assert_same, small_run

JOB: dict[str, Any] = {"strategy": "fedavg", "learning_rate": 0.01, "seed": 2}
"""Learns slowly: of six rounds the fifth is the first with the best accuracy."""


@pytest.mark.slow
def test_the_model_of_the_best_test_is_kept_beside_the_last(tmp_path: Path) -> None:
    found = small_run(tmp_path / "run", rounds=6, **JOB)
    best = found.summary.best_round
    assert best == 5
    reference = small_run(tmp_path / "short", rounds=best, **JOB)
    loaded = adaptcl.load(tmp_path / "run", model=found.model, best=True)
    for name, tensor in adaptcl.load(tmp_path / "short", model=found.model).state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor)
    # The model of the short run is the best one itself.
    assert reference.summary.best_round == best
    again = adaptcl.load(tmp_path / "short", model=found.model, best=True)
    assert again.state_dict().keys() == loaded.state_dict().keys()
    with pytest.raises(SettingError, match="best and worker are both given"):
        adaptcl.load(tmp_path / "run", model=found.model, best=True, worker=1)


def test_of_equal_tests_the_model_of_the_first_is_kept(tmp_path: Path) -> None:
    found = small_run(tmp_path / "run", rounds=4, **JOB)
    assert found.summary.best_round == 1
    first = small_run(tmp_path / "first", rounds=1, **JOB).model.state_dict()
    kept = adaptcl.load(tmp_path / "run", model=found.model, best=True).model.state_dict()
    assert all(torch.equal(kept[name], tensor) for name, tensor in first.items())


@pytest.mark.slow
def test_a_run_made_longer_keeps_the_best_model_of_all_its_rounds(tmp_path: Path) -> None:
    best = small_run(tmp_path / "whole", rounds=6, **JOB).summary.best_round
    small_run(tmp_path / "longer", rounds=best, **JOB)
    small_run(tmp_path / "longer", rounds=6, resume=True, **JOB)
    assert_same(tmp_path / "longer", tmp_path / "whole")


@pytest.mark.slow
def test_a_run_made_longer_keeps_it_where_the_round_that_was_the_last_is_not_tested(
    tmp_path: Path,
) -> None:
    # Round 7 has the best test, and in a longer run none; round 8 is worse than round 5.
    job: dict[str, Any] = {**JOB, "seed": 1, "learning_rate": 20, "averaging": 0}
    job["evaluate_every"] = 5
    assert small_run(tmp_path / "longer", rounds=7, **job).summary.best_round == 7
    found = small_run(tmp_path / "longer", rounds=8, resume=True, **job)
    assert found.summary.best_round == 5
    small_run(tmp_path / "whole", rounds=8, **job)
    assert_same(tmp_path / "longer", tmp_path / "whole")
