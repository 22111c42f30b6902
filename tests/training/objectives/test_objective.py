"""Losses and metrics of an objective, and what is said if they do not fit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adaptcl.data import as_samples
from adaptcl.data.columns import IGNORED
from adaptcl.errors import AdaptCLError, DataError, SettingError
from adaptcl.runs.workload_check import check_scores, tried_loss
from adaptcl.training.objectives.objective import (
    CLASSIFICATION,
    OBJECTIVES,
    Objective,
    custom_objective,
    scores_in,
    with_main,
)

DRAW = torch.Generator().manual_seed(0)


def batch(name: str) -> tuple[Tensor, Tensor]:
    """Outputs and targets that fit an objective."""
    tokens = torch.randint(5, (4, 6), generator=DRAW)
    return {
        "classification": (torch.randn(4, 5, generator=DRAW), tokens[:, 0]),
        "regression": (torch.randn(4, 1, generator=DRAW), torch.randn(4, generator=DRAW)),
        "segmentation": (torch.randn(4, 5, 6, 6, generator=DRAW), tokens[:, None].expand(4, 6, 6)),
        "language-modelling": (torch.randn(4, 6, 5, generator=DRAW), tokens),
        "multi-label": (torch.randn(4, 3, generator=DRAW), (tokens[:, :3] > 2).float()),
    }[name]


@pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=list(OBJECTIVES))
def test_a_ready_made_objective_has_a_gradient_and_measures_its_main_metric(
    objective: Objective,
) -> None:
    outputs, targets = batch(objective.name)
    check_scores(objective, outputs, targets)
    loss = tried_loss(objective, outputs.requires_grad_(), targets)
    elements = objective.total_loss(outputs, targets) / objective.mean_loss(outputs, targets)
    assert float(elements) == pytest.approx(
        outputs.numel() if objective.name == "multi-label" else targets.numel()
    )
    loss.backward()  # type: ignore[no-untyped-call]
    assert outputs.grad is not None
    metric = objective.metrics[objective.main.name]()
    metric.update(outputs.detach(), targets)
    assert float(metric.compute()) == pytest.approx(float(metric.compute()))


def test_the_mean_of_losses_by_sample_is_the_loss() -> None:
    objective = custom_objective(lambda outputs, targets: (outputs - targets).square())
    outputs, targets = torch.tensor([1.0, 2.0]), torch.tensor([0.0, 0.0])
    assert float(objective.mean_loss(outputs, targets)) == 2.5
    assert float(objective.total_loss(outputs, targets)) == 5.0
    assert objective.main.name == "loss"


@pytest.mark.parametrize(
    "output",
    [
        torch.ones(2),
        {"logits": torch.ones(2), "other": 3},
        SimpleNamespace(logits=torch.ones(2), loss=None),
        (torch.ones(2), torch.zeros(3)),
    ],
)
def test_scores_are_found_in_whatever_a_model_returns(output: Any) -> None:
    assert torch.equal(scores_in(output, first=True), torch.ones(2))


class Labelled(nn.Module):
    """Computes its loss as the models of Hugging Face do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, values: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.layer(values)
        loss = {} if labels is None else {"loss": F.cross_entropy(logits, labels)}
        return {"logits": logits, **loss}


def test_a_model_may_compute_its_loss_from_labels_that_it_is_given() -> None:
    objective, values = custom_objective("model"), torch.randn(4, 3)
    labels = torch.tensor([0, 1, 0, 1])
    for inputs in (values, (values,), {"values": values}):
        outputs = objective.outputs(Labelled(), inputs, labels)
        assert objective.mean_loss(outputs, labels).requires_grad


def mixing(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.l1_loss(outputs, targets)


@pytest.mark.parametrize(
    ("loss", "sentence"),
    [
        (
            lambda outputs, targets: outputs @ targets,
            r"The loss failed on outputs float32 \[4, 1\]",
        ),
        (lambda outputs, targets: 3.0, "gives a float, but it must give a tensor"),
        (lambda outputs, targets: outputs.new_zeros(4, 1), r"of the shape \[4, 1\] on 4 samples"),
        (lambda outputs, targets: outputs.detach().sum(), "has no gradient"),
        (lambda outputs, targets: outputs.sum() / 0, "is -?inf before any training"),
        (mixing, "would compare outputs with targets of other samples"),
        (
            lambda outputs, targets: (outputs - targets).square().mean(),
            "would compare outputs with targets of other samples",
        ),
    ],
)
def test_a_loss_that_cannot_be_one_is_refused_in_a_sentence(loss: Any, sentence: str) -> None:
    outputs, targets = batch("regression")
    with pytest.raises(AdaptCLError, match=sentence):
        tried_loss(custom_objective(loss), outputs.requires_grad_(), targets)


def correlation(outputs: Tensor, targets: Tensor) -> Tensor:
    return -torch.corrcoef(torch.stack([outputs[:, 0], targets]))[0, 1]


@pytest.mark.parametrize(
    "loss",
    [
        lambda outputs, targets: (outputs[:, 0] - targets).abs().mean(),
        lambda outputs, targets: F.binary_cross_entropy(
            outputs[:, 0].sigmoid(), targets.sigmoid(), reduction="none"
        ),
        lambda outputs, targets: F.binary_cross_entropy(outputs.abs()[:, 0] / 9, targets.abs() / 9),
        correlation,
    ],
)
def test_a_loss_that_does_not_mix_samples_by_mistake_is_taken(loss: Any) -> None:
    """Also one that does not care about the order of these samples, or is about all of them."""
    outputs, targets = batch("regression")
    assert tried_loss(custom_objective(loss), outputs.requires_grad_(), targets).requires_grad


def test_scores_that_do_not_go_with_the_targets_are_refused() -> None:
    objective = OBJECTIVES["language-modelling"]
    scores, tokens = batch(objective.name)
    with pytest.raises(DataError, match=r"must give \[samples, places, tokens\] scores"):
        check_scores(objective, scores[:, 0], tokens)
    with pytest.raises(DataError, match=r"goes with targets of the shape \[4, 6\]"):
        check_scores(objective, scores, tokens[:, 1:])


def test_metrics_of_the_user_come_first_and_may_be_turned_around() -> None:
    objective = custom_objective(metrics={"gain": lambda *_: 1, "mae": lambda *_: 2})
    assert list(objective.metrics) == ["gain", "mae", "accuracy"]
    assert (objective.main.name, objective.main.better) == ("gain", "higher")
    assert with_main(objective, "mae", "").main.better == "lower"
    assert with_main(objective, "", "lower").main.better == "lower"
    assert objective.loss is CLASSIFICATION.loss
    with pytest.raises(SettingError, match="main_metric is 'rmse', but there are only gain, mae"):
        with_main(objective, "rmse", "")


def test_tokens_are_targets_of_the_place_before_them() -> None:
    tokens = torch.tensor([[5, 6, 7], [8, 9, 0]])
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    shifted = [[6, 7, IGNORED], [9, 0, IGNORED]]
    for source in (tokens, (tokens, tokens), {"input_ids": tokens, "labels": tokens}):
        assert as_samples(source, "tokens").targets.tolist() == shifted
    masked = as_samples({"input_ids": tokens, "attention_mask": mask}, "tokens")
    assert masked.targets.tolist() == [[6, 7, IGNORED], [9, IGNORED, IGNORED]]
    given = torch.tensor([[6, 7, 1], [9, 0, 1]])
    assert as_samples((tokens, given), "tokens").targets.tolist() == given.tolist()
