"""Runs that learn something else than classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchmetrics
from torch import Tensor, nn
from torch.nn import functional as F

import adaptcl
from adaptcl.config.config import configure
from adaptcl.errors import AdaptCLError
from adaptcl.runs.files.run_files import read_finished
from adaptcl.runs.session import run_session
from adaptcl.runs.simulated_session import simulated_session
from adaptcl.runs.workload import load_workload

DRAW = torch.Generator().manual_seed(0)
X = torch.randn(90, 6, generator=DRAW)
Y = X @ torch.randn(6, generator=DRAW)
TRAIN, TEST = (X[:60], Y[:60]), (X[60:], Y[60:])
SHORT: dict[str, Any] = {"workers": 2, "rounds": 2, "epochs": 1, "batch_size": 10, "sigma": 2.0}


def mlp(outputs: int = 1) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, outputs))


def test_a_regression_gets_better_and_is_judged_by_its_error(tmp_path: Path) -> None:
    settings = {**SHORT, "rounds": 4, "learning_rate": 0.02, "strength": 0.1}
    result = adaptcl.run(
        mlp(), TRAIN, TEST, objective="regression", out=tmp_path / "run", **settings
    )
    values = [record.main_value or 0.0 for record in result.rounds]
    assert values == sorted(values, reverse=True)
    assert result.summary.best_value == values[-1]
    assert result.summary.metrics.keys() == {"rmse", "mae", "r2"}
    assert (result.summary.metric, result.summary.better) == ("rmse", "lower")
    assert "RMSE" in repr(result)
    for record in result.rounds:
        assert record.accuracy is None
        assert record.test_loss == pytest.approx((record.main_value or 0) ** 2, rel=1e-4)
        assert all(worker.train_loss is not None for worker in record.workers)
    finished = read_finished(tmp_path / "run")
    assert finished is not None
    assert finished[1] == result.rounds
    assert np.isnan(finished[0].accuracy)


def test_loss_metrics_optimizer_and_schedule_may_be_the_users() -> None:
    asked: list[int] = []

    def schedule(round_: int) -> float:
        asked.append(round_)
        return 1 / round_

    result = adaptcl.run(
        mlp(),
        TRAIN,
        TEST,
        loss=lambda outputs, targets: F.huber_loss(outputs[:, 0], targets),
        metrics={
            "error": lambda outputs, targets: (outputs[:, 0] - targets).abs().mean(),
            "r2": lambda outputs, targets: 1.0,
        },
        better="lower",
        optimizer=lambda parameters: torch.optim.Adam(parameters, 1e-2),
        schedule=schedule,
        clip_norm=1.0,
        accumulation=2,
        **SHORT,
    )
    assert sorted(asked) == [1, 1, 1, 2, 2]  # tried once before
    assert result.summary.metrics.keys() == {"error", "r2"}
    assert result.summary.measure.better == "lower"


def test_metrics_with_update_and_compute_stand_beside_accuracy() -> None:
    f1 = torchmetrics.F1Score("binary")
    labels = (Y > 0).long()
    binary = nn.Sequential(mlp(2), nn.LogSoftmax(1))
    result = adaptcl.run(
        binary,
        (X[:60], labels[:60]),
        (X[60:], labels[60:]),
        metrics={"auroc": torchmetrics.AUROC("multiclass", num_classes=2)},
        main_metric="accuracy",
        **SHORT,
    )
    assert result.summary.metrics.keys() == {"auroc", "accuracy"}
    assert result.summary.metric == "accuracy"
    assert f1.compute() == 0  # torchmetrics' own state is not touched


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.head = nn.Linear(2, 8), nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, left: Tensor, right: Tensor) -> dict[str, Tensor]:
        return {"logits": self.head(torch.relu(self.left(left) + self.right(right)))}


@pytest.mark.parametrize("form", [tuple, dict])
def test_inputs_may_be_several_tensors(form: type) -> None:
    def part(rows: slice) -> Any:
        left, right, labels = X[rows, :2], X[rows, 2:], (Y[rows] > 0).long()
        named = {"left": left, "right": right, "labels": labels}
        return named if form is dict else ((left, right), labels)

    result = adaptcl.run(TwoInputs(), part(slice(60)), part(slice(60, 90)), **SHORT)
    assert result.summary.accuracy > 0.3
    example = (X[:1, :2], X[:1, 2:]) if form is tuple else ()
    named = {} if form is tuple else {"left": X[:1, :2], "right": X[:1, 2:]}
    assert result.delivered(*example, **named)["logits"].shape == (1, 2)


class NextCharacter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(9, 8), nn.Sequential(nn.ReLU(), nn.Linear(8, 9))

    def forward(self, input_ids: Tensor) -> Tensor:
        scores: Tensor = self.head(self.table(input_ids))
        return scores


def test_texts_of_different_lengths_are_padded_by_the_users_collate() -> None:
    texts = [torch.arange(3 + n % 4) for n in range(24)]

    def collate(samples: list[Tensor]) -> dict[str, Tensor]:
        pad = nn.utils.rnn.pad_sequence
        return {
            "input_ids": pad(samples, batch_first=True),
            "labels": pad(samples, batch_first=True, padding_value=-100),
        }

    result = adaptcl.run(
        NextCharacter(),
        texts,
        texts[:3],
        objective="language-modelling",
        collate=collate,
        **{**SHORT, "rounds": 5, "epochs": 4, "learning_rate": 0.3},
    )
    assert result.summary.main_value < (result.rounds[0].main_value or 0)


def test_a_softmax_before_the_cross_entropy_is_warned_of() -> None:
    inputs = torch.randn(60, 6)
    data = inputs, (inputs[:, 0] > 0).long()
    model = nn.Sequential(nn.Linear(6, 2), nn.Softmax(dim=1))
    given: dict[str, Any] = {"rounds": 1, "workers": 2, "strategy": "fedavg"}
    with pytest.warns(adaptcl.AdaptCLWarning, match="The model gives probabilities"):
        adaptcl.run(model, data, data, **given)


def test_an_npz_file_of_numbers_is_regressed_from_the_command_line(tmp_path: Path) -> None:
    x, y = X.numpy(), Y.numpy()
    np.savez(tmp_path / "data.npz", x_train=x[:60], y_train=y[:60], x_test=x[60:], y_test=y[60:])
    chosen = configure(
        {
            "objective": "regression",
            "main_metric": "r2",
            "data": str(tmp_path / "data.npz"),
            "model": f"{__name__}:factory",
            **SHORT,
        }
    )
    workload = load_workload(chosen.job)
    result = run_session(simulated_session(chosen, workload))
    assert (result.summary.metric, result.summary.better) == ("r2", "higher")


def factory(shape: tuple[int, ...], outputs: int) -> nn.Module:
    assert (shape, outputs) == ((6,), 1)
    return mlp()


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({}, "Labels must be class numbers or names, but they are a Tensor of float32"),
        ({"objective": "regresion"}, "objective is 'regresion', but it must be one of"),
        ({"objective": "segmentation"}, "Targets must be whole class numbers"),
        ({"objective": "regression", "partition": "dirichlet"}, "deals samples by their class"),
        ({"loss": F.l1_loss}, "would compare outputs with targets of other samples"),
        ({"loss": 3}, "loss is an int, but it must be a function"),
        ({"loss": "model"}, "failed on .* unexpected keyword argument 'labels'"),
        (
            {"objective": "regression", "optimizer": torch.optim.Adam([torch.zeros(1)])},
            "every worker makes its own",
        ),
        (
            {"objective": "regression", "optimizer": lambda parameters: None},
            "optimizer returns None",
        ),
        (
            {"objective": "regression", "optimizer": lambda parameters: parameters.adam},
            "The optimizer failed on the model",
        ),
        (
            {"objective": "regression", "schedule": lambda round_: None},
            "The schedule failed for round 1",
        ),
        (
            {"objective": "regression", "schedule": lambda round_: -1.0},
            "The schedule gives -1 for round 1",
        ),
        ({"objective": "regression", "metrics": [F.l1_loss]}, "metrics is a list, but it must be"),
        (
            {"objective": "regression", "metrics": {"mine": lambda outputs, targets: outputs}},
            "The metric 'mine' gives a Tensor of the shape",
        ),
        (
            {"objective": "regression", "metrics": {"mine": lambda outputs: 1}},
            r"The metric 'mine' failed on outputs float32 \[30, 1\]",
        ),
        ({"objective": "regression", "collate": list}, "collate returns a list"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence_before_any_training(
    asked: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(AdaptCLError, match=sentence):
        adaptcl.run(mlp(), TRAIN, TEST, **{**SHORT, **asked})
