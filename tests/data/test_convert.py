from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from adaptcl.data import Samples, as_samples
from adaptcl.errors import DataError

INPUTS = torch.randn(4, 3)
LABELS = torch.tensor([0, 1, 1, 0])


class Listed(Dataset[tuple[Any, Any]]):
    """A map data set of whatever pairs it is given."""

    def __init__(self, *items: Any) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


def test_samples_stay_as_they_are() -> None:
    samples = Samples(INPUTS, LABELS)
    assert as_samples(samples) is samples


@pytest.mark.parametrize(
    "source",
    [
        (INPUTS, LABELS),
        (INPUTS.numpy(), LABELS.numpy()),
        (INPUTS.double().numpy(), LABELS.numpy().astype(np.uint8)),
        TensorDataset(INPUTS, LABELS),
        Listed(*zip(INPUTS.numpy(), LABELS.tolist(), strict=True)),
        Listed(*zip(INPUTS, LABELS.numpy(), strict=True)),
        list(zip(INPUTS, LABELS, strict=True)),
    ],
    ids=["tensors", "arrays", "other widths", "TensorDataset", "ints", "numpy ints", "list"],
)
def test_pairs_and_map_data_sets_become_the_same_samples(source: Any) -> None:
    samples = as_samples(source)
    assert torch.equal(samples.inputs, INPUTS)
    assert torch.equal(samples.labels, LABELS)


def test_two_samples_in_a_list_are_not_mistaken_for_inputs_and_labels() -> None:
    samples = as_samples(Listed((INPUTS[0], 1), (INPUTS[1], 0)))
    assert samples.labels.tolist() == [1, 0]


def test_uint8_images_stay_uint8() -> None:
    images = np.zeros((2, 1, 4, 4), dtype=np.uint8)
    assert as_samples((images, np.array([0, 1]))).inputs.dtype == torch.uint8


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (Listed((INPUTS[0], 0), (INPUTS[1, :2], 0)), r"Sample 1 .* \[2\], but sample 0 .* \[3\]"),
        (Listed((INPUTS[0], 0), (INPUTS[1].double(), 0)), "Sample 1 is torch.float64"),
        (Listed(INPUTS[0]), "Sample 0 is a Tensor, not a pair"),
        (Listed(("cat.png", 0)), "input of sample 0 is a str"),
        (Listed((INPUTS[0], "cat")), "label of sample 0 is 'cat'"),
        (Listed((INPUTS[0], torch.tensor([0, 1]))), "not one class number"),
        (Listed((INPUTS[0], torch.tensor(0.5))), "integer class numbers"),
        (Listed(), "no samples"),
        (INPUTS, "no labels"),
        ((INPUTS, LABELS.float()), "integer class numbers"),
        ((INPUTS, LABELS == 0), "integer class numbers"),
        ((INPUTS.numpy(), np.array(list("abba"))), "numeric"),
        ({"inputs": INPUTS}, "A dict cannot be read as samples"),
        (3, "An int cannot be read as samples"),
        (None, "None cannot be read as samples"),
    ],
)
def test_what_cannot_be_read_as_samples_is_refused(source: Any, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        as_samples(source)
