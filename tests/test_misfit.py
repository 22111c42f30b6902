"""A model and data that do not go together."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from adaptcl.data import Samples
from adaptcl.errors import AdaptCLError, DataError
from adaptcl.materials import Materials
from adaptcl.misfit import refuse_misfit, refuse_tables


def linear(classes: int = 3) -> nn.Module:
    return nn.Linear(5, classes)


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = linear()

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        return self.inner(inputs), inputs


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (linear(2), "The model gives scores for 2 classes, but there is a label 2."),
        (Pair(), "The model must give [samples, classes] scores, but it gives no tensor at all."),
        (nn.Sequential(linear(), nn.Unflatten(1, (3, 1))),
         "The model must give [samples, classes] scores, but it gives shape [2, 3, 1]."),
    ],
)  # fmt: skip
def test_a_model_whose_scores_do_not_fit_the_labels_is_refused(
    model: nn.Module, sentence: str
) -> None:
    samples = Samples(torch.randn(12, 5), torch.arange(12) % 3)
    materials = Materials(model, [samples], samples, ())
    with pytest.raises(DataError) as refused:
        refuse_misfit(materials)
    assert str(refused.value) == sentence
    refuse_misfit(Materials(linear(3), [samples], samples, ()))


def bag(rows: int, *, sparse: bool = False) -> nn.Module:
    """A model that looks its inputs up in a table."""
    return nn.Sequential(nn.EmbeddingBag(rows, 4, sparse=sparse), nn.Linear(4, 3))


def tokens(*numbers: int) -> Samples:
    """One of them is a worker's data, each in the last place of a sample of its own."""
    inputs = torch.ones(len(numbers) + 2, 6, dtype=torch.int64)
    inputs[2:, -1] = torch.tensor(numbers)
    return Samples(inputs, torch.arange(len(inputs)) % 3)


@pytest.mark.parametrize(
    ("parts", "test", "seen"),
    [
        ([tokens(3), tokens(3, 9, 4)], tokens(3), "1 to 9"),
        ([tokens(3), tokens(3)], tokens(9), "1 to 9"),
        ([tokens(0, 8), tokens(-1)], tokens(3), "-1 to 8"),
    ],
)
def test_a_number_that_the_table_has_no_row_for_is_found_wherever_it_is(
    parts: list[Samples], test: Samples, seen: str
) -> None:
    with pytest.raises(DataError) as refused:
        refuse_tables(Materials(bag(9), parts, test, ()))
    assert str(refused.value) == (
        f"Module '0' (EmbeddingBag) has rows 0 to 8, but numbers from {seen} are looked up in it."
    )


def test_numbers_that_all_have_a_row_are_taken() -> None:
    refuse_tables(Materials(bag(10), [tokens(0), tokens(9)], tokens(4), ()))


def test_a_table_with_sparse_gradients_is_refused_by_name() -> None:
    with pytest.raises(AdaptCLError, match=r"'0' \(EmbeddingBag\) has sparse gradients"):
        refuse_tables(Materials(bag(9, sparse=True), [tokens(3)], tokens(3), ()))


def test_other_models_and_other_inputs_are_left_to_tracing() -> None:
    floats = Samples(torch.randn(4, 5), torch.arange(4) % 3)
    refuse_tables(Materials(linear(), [floats], floats, ()))
    refuse_tables(Materials(linear(), [tokens(3)], tokens(3), ()))
