"""Where pruning does not pay, nobody is pruned and AdaptCL is FedAVG."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import adaptcl
from tests.runs.small_runs import clouds

if TYPE_CHECKING:
    from tests.strategies.adaptcl.conftest import Engines, Lines


def test_where_pruning_does_not_pay_adaptcl_is_fedavg_bit_for_bit() -> None:
    def model_of(strategy: str, **settings: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
        result = adaptcl.run(
            model, clouds(120), clouds(60, 1), strategy=strategy, workers=4, rounds=6,
            batch_size=16, sigma=1.3, bandwidth_max=0.01, threads=1, codec="int8", **settings,
        )  # fmt: skip
        return [*result.model.state_dict().values()]

    fedavg = model_of("fedavg")
    with pytest.warns(adaptcl.errors.AdaptCLWarning, match="Nobody is pruned"):
        assert all(map(torch.equal, model_of("adaptcl"), fedavg))
    pruned = model_of("adaptcl", adaptcl={"least_speed_up": 1.0})
    assert not all(map(torch.equal, pruned, fedavg))


def test_where_pruning_does_not_pay_the_user_hears_it_once(
    engine: Engines, line: Lines, tmp_path: Path
) -> None:
    run = engine(line(45, 40, 30)).until(6).resumed(tmp_path).until(20)
    assert run.retentions() == [1, 1, 1]
    (warning,) = (warning for closed in run.closed for warning in closed.warnings)
    assert "Nobody is pruned: rounds would become only 1.38 times as fast" in warning
    assert "`least_speed_up` (1.5)" in warning


def test_where_pruning_does_not_pay_nobody_trains_sparsely_until_it_does(
    engine: Engines, changing: Lines, tmp_path: Path
) -> None:
    times = changing((45, 40, 30), (200, 40, 30), 9)
    run = engine(times, grow=True).until(5).resumed(tmp_path).until(20)
    sparse = [task.is_sparse for task in run.tasks if task.worker == 1]
    # From round 6 on, after the checkpoint. The first decision after the change is round 12's.
    assert sparse == [False] * 6 + [True] * 9


def test_before_anything_is_measured_training_is_plain_unless_any_gain_will_do(
    engine: Engines, line: Lines
) -> None:
    def first_sparse_round(**settings: Any) -> int:
        run = engine(line(90, 40, 30), first_pruning=5, **settings).until(5)
        return min(task.round for task in run.tasks if task.is_sparse)

    assert first_sparse_round() == 2
    assert first_sparse_round(least_speed_up=1) == 1
    assert first_sparse_round(literal_algorithm_2=True) == 1
    assert first_sparse_round(pruned_rates=((0.1, 0.1, 0.0),)) == 1


def test_nor_does_a_worker_in_a_round_in_which_its_sub_model_grows_back(
    engine: Engines, changing: Lines
) -> None:
    run = engine(changing((90, 30, 30), (30, 30, 30), 19), grow=True).until(40)
    grew = max(round for round, rates in run.rates().items() if rates[0] < 0)
    plain = [task.round for task in run.tasks if task.worker == 0 and not task.is_sparse]
    assert plain == [1, *range(grew, 41)]
