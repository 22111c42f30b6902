from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from adaptcl.data import DataSet
from adaptcl.data.sources import load_digits, load_fashion


def counts(labels: torch.Tensor) -> list[int]:
    return torch.bincount(labels, minlength=10).tolist()


def assert_normalised(dataset: DataSet) -> None:
    inputs, _ = dataset.train.batch(torch.arange(len(dataset.train)))
    assert inputs.mean().item() == pytest.approx(0, abs=0.02)
    assert inputs.std().item() == pytest.approx(1, abs=0.02)


def test_fashion_is_6000_and_2000_balanced_images() -> None:
    dataset = load_fashion()
    assert dataset.train.shape == (1, 28, 28)
    assert counts(dataset.train.labels) == [600] * 10
    assert counts(dataset.test.labels) == [200] * 10
    assert dataset.classes[9] == "Ankle boot"
    assert_normalised(dataset)


def test_digits_are_all_1797_with_a_balanced_test_part() -> None:
    dataset = load_digits()
    assert dataset.train.shape == (1, 8, 8)
    assert len(dataset.train) == 1437
    assert counts(dataset.test.labels) == [36] * 10
    assert max(counts(dataset.train.labels)) - min(counts(dataset.train.labels)) <= 10
    assert_normalised(dataset)


@pytest.mark.parametrize("load", [load_fashion, load_digits])
def test_a_prefix_of_a_shipped_data_set_is_a_fair_sample_and_labels_fit(
    load: Callable[[], DataSet],
) -> None:
    dataset = load()
    assert sorted(dataset.train.labels[:10].tolist()) == list(range(10))
    assert counts(dataset.test.labels[:100]) == [10] * 10
    # Classifying by the nearest class mean works, so images and labels belong together.
    train, labels = dataset.train.batch(torch.arange(len(dataset.train)))
    means = torch.stack([train[labels == label].mean(0) for label in range(10)]).flatten(1)
    test, truth = dataset.test.batch(torch.arange(len(dataset.test)))
    nearest = torch.cdist(test.flatten(1), means).argmin(1)
    assert (nearest == truth).float().mean() > 0.6
