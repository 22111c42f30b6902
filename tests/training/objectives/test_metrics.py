"""Metrics agree with those of scikit-learn, batch by batch and at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from sklearn import metrics as expected
from torch import Tensor
from torch.nn import functional as F

from adaptcl.data.columns import IGNORED
from adaptcl.errors import SettingError
from adaptcl.training.objectives.metrics import (
    LOWER,
    AveragePrecision,
    Determination,
    Dice,
    Gathered,
    MeanAbsolute,
    MeanIoU,
    Measure,
    Metric,
    Perplexity,
    RootMeanSquare,
    as_metric,
)

DRAW = torch.Generator().manual_seed(0)
NUMBERS, GUESSES = torch.randn(50, generator=DRAW), torch.randn(50, 1, generator=DRAW)
LABELS = torch.randint(2, (50, 3), generator=DRAW).float()
SCORES = torch.randn(50, 3, generator=DRAW).round(decimals=1)
"""Rounded, so that some are equal."""
MASKS = torch.randint(3, (50, 4, 4), generator=DRAW)
PIXELS = torch.randn(50, 3, 4, 4, generator=DRAW)


def pixels(function: Callable[..., float]) -> float:
    return function(MASKS.flatten(), PIXELS.argmax(1).flatten(), average="macro")


@pytest.mark.parametrize(
    ("metric", "outputs", "targets", "value"),
    [
        (RootMeanSquare, GUESSES, NUMBERS, expected.root_mean_squared_error(NUMBERS, GUESSES)),
        (MeanAbsolute, GUESSES, NUMBERS, expected.mean_absolute_error(NUMBERS, GUESSES)),
        (Determination, GUESSES, NUMBERS, expected.r2_score(NUMBERS, GUESSES)),
        (AveragePrecision, SCORES, LABELS, expected.average_precision_score(LABELS, SCORES)),
        (MeanIoU, PIXELS, MASKS, pixels(expected.jaccard_score)),
        (Dice, PIXELS, MASKS, pixels(expected.f1_score)),
        (lambda: Gathered(F.mse_loss), GUESSES[:, 0], NUMBERS, F.mse_loss(GUESSES[:, 0], NUMBERS)),
    ],
)
def test_a_metric_is_that_of_all_samples_at_once(
    metric: Callable[[], Metric], outputs: Tensor, targets: Tensor, value: float
) -> None:
    found = metric()
    for _ in range(2):  # the second time after a reset
        found.reset()
        for part in torch.arange(50).tensor_split([20, 40]):
            found.update(outputs[part], targets[part])
        assert float(found.compute()) == pytest.approx(float(value), rel=1e-5)


def test_one_channel_of_scores_tells_foreground_from_background() -> None:
    found = MeanIoU()
    found.update(torch.tensor([[[[1.0, -1.0], [2.0, -3.0]]]]), torch.tensor([[[1, 0], [1, 1]]]))
    assert found.compute() == pytest.approx((2 / 3 + 1 / 2) / 2)


def test_perplexity_of_even_scores_is_the_number_of_tokens_and_padding_counts_for_nothing() -> None:
    found = Perplexity()
    targets = torch.tensor([[1, 2, IGNORED], [0, IGNORED, IGNORED]])
    scores = torch.zeros(2, 3, 7)
    scores[targets == IGNORED] = 100 * torch.randn(3, 7)
    found.update(scores, targets)
    assert found.compute() == pytest.approx(7)


def test_the_share_of_no_variance_is_not_a_number() -> None:
    found = Determination()
    found.update(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 3.0]))
    assert math.isnan(found.compute())


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (3, "must be a function of outputs and targets, or have update, compute and reset"),
        (MeanIoU, "must be an instance"),
    ],
)
def test_what_is_no_metric_is_refused_by_name(given: Any, sentence: str) -> None:
    with pytest.raises(SettingError, match=f"'mine'.*{sentence}"):
        as_metric("mine", given)


def test_a_measure_knows_which_value_is_better_and_how_to_write_it() -> None:
    accuracy, error = Measure(), Measure("rmse", LOWER)
    assert accuracy.is_better(0.6, 0.5)
    assert error.is_better(0.5, 0.6)
    assert error.is_better(1e9, error.worst)
    assert accuracy.gain(0.6, 0.5) == pytest.approx(-error.gain(0.6, 0.5))
    assert (accuracy.write(0.6), error.write(0.61239)) == ("60.0 %", "0.6124")
    assert [error.write(each) for each in (0.5, 12.0, 1234.0)] == ["0.5000", "12.00", "1234"]
