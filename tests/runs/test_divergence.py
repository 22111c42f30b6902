"""A run that diverges keeps its last good model and can go on."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import adaptcl
from adaptcl.errors import DivergedError, RunFolderError

DRAW = torch.Generator().manual_seed(0)
X = torch.randn(60, 4, generator=DRAW)
DATA = (X[:40], X[:40].sum(1)), (X[40:], X[40:].sum(1))


def schedule(round_: int) -> float:
    """From the third round on, steps that no model survives."""
    return 1.0 if round_ < 3 else 1e30


def run(out: Path | None, **settings: Any) -> adaptcl.Result:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    asked: dict[str, Any] = {
        "workers": 2,
        "rounds": 4,
        "epochs": 2,
        "batch_size": 5,
        "strategy": "fedavg",
    }
    return adaptcl.run(model, *DATA, out=out, objective="regression", **asked | settings)


def test_the_error_names_worker_round_and_what_to_lower_and_brings_the_last_good_model() -> None:
    with pytest.raises(DivergedError) as diverged:
        run(None, schedule=schedule)
    assert str(diverged.value).startswith("The training of worker 1 diverged in round 3 (its loss")
    assert str(diverged.value).endswith("; lower learning_rate, or clip gradients with clip_norm.")
    expected = run(None, rounds=2).model.state_dict()
    found = diverged.value.model.state_dict()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_diverged_run_can_be_loaded_and_goes_on_with_a_lower_learning_rate(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "run"
    with pytest.raises(DivergedError, match=r"after 2 rounds is kept in .*resume=True"):
        run(folder, schedule=schedule)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    last_good = adaptcl.load(folder, model=model)
    assert math.isfinite(float(F.mse_loss(last_good(DATA[1][0])[:, 0], DATA[1][1])))
    with pytest.raises(RunFolderError, match="begun with other settings: epochs"):
        run(folder, schedule=schedule, resume=True, learning_rate=1e-33, epochs=1)
    result = run(folder, schedule=schedule, resume=True, learning_rate=1e-33)
    assert [record.round for record in result.rounds] == [1, 2, 3, 4]
    with pytest.raises(RunFolderError, match="begun with other settings: learning_rate"):
        run(folder, schedule=schedule, resume=True, learning_rate=0.1)


def test_clipped_gradients_keep_a_steep_loss_from_diverging() -> None:
    def steep(outputs: Tensor, targets: Tensor) -> Tensor:
        return 1e12 * F.mse_loss(outputs[:, 0], targets)

    with pytest.raises(DivergedError):
        run(None, loss=steep)
    assert run(None, loss=steep, clip_norm=1.0).summary.rounds == 4
