"""A model and data that do not go together."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor, nn

import adaptcl
from adaptcl.data import Samples
from adaptcl.errors import AdaptCLError, DataError, TraceError
from adaptcl.runs.workload import Workload
from adaptcl.runs.workload_check import check_lookup_tables, check_workload


def linear(classes: int = 3) -> nn.Module:
    return nn.Linear(5, classes)


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = linear()

    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        return {"scores": self.inner(inputs), "seen": inputs}


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (linear(2), "The model gives scores for 2 classes, but worker 0 has a label 2; "
         "labels begin at 0."),
        (Pair(), "The model must give [samples, classes] scores, but it gives no tensor at all."),
        (nn.Sequential(linear(), nn.Unflatten(1, (3, 1))),
         "The model must give [samples, classes] scores, but it gives shape [2, 3, 1]."),
    ],
)  # fmt: skip
def test_a_model_whose_scores_do_not_fit_the_labels_is_refused(
    model: nn.Module, sentence: str
) -> None:
    samples = Samples(torch.randn(12, 5), torch.arange(12) % 3)
    workload = Workload(model, [samples], samples, ())
    with pytest.raises(DataError) as refused:
        check_workload(workload, 32)
    assert str(refused.value) == sentence
    check_workload(Workload(linear(3), [samples], samples, ()), 32)


def test_a_model_with_too_few_scores_is_told_the_names_of_the_classes() -> None:
    samples = Samples(torch.randn(12, 5), torch.arange(12) % 3, classes=("a", "b", "c"))
    workload = Workload(linear(2), [samples], samples, (), samples.classes)
    with pytest.raises(DataError) as refused:
        check_workload(workload, 32)
    assert str(refused.value) == ("The data has 3 classes (a, b, c), but the model gives 2 scores.")


class SecondHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = linear(), linear()

    def forward(self, inputs: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        scores: Tensor = self.first(inputs)
        return (scores, self.second(inputs)) if self.training else scores


def test_of_a_model_that_gives_more_in_training_the_first_output_is_used() -> None:
    samples = Samples(torch.randn(12, 5), torch.arange(12) % 3)
    check_workload(Workload(SecondHead().eval(), [samples], samples, ()), 32)


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
        check_lookup_tables(Workload(bag(9), parts, test, ()))
    assert str(refused.value) == (
        f"Module '0' (EmbeddingBag) has rows 0 to 8, but numbers from {seen} are looked up in it."
    )


def test_numbers_that_all_have_a_row_are_taken() -> None:
    check_lookup_tables(Workload(bag(10), [tokens(0), tokens(9)], tokens(4), ()))


def test_a_table_with_sparse_gradients_is_refused_by_name() -> None:
    with pytest.raises(AdaptCLError, match=r"'0' \(EmbeddingBag\) has sparse gradients"):
        check_lookup_tables(Workload(bag(9, sparse=True), [tokens(3)], tokens(3), ()))


def test_other_models_and_other_inputs_are_left_to_tracing() -> None:
    floats = Samples(torch.randn(4, 5), torch.arange(4) % 3)
    check_lookup_tables(Workload(linear(), [floats], floats, ()))
    check_lookup_tables(Workload(linear(), [tokens(3)], tokens(3), ()))


def normed() -> nn.Module:
    """A model that cannot train on a single sample."""
    return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3))


def rows(count: int) -> Samples:
    return Samples(torch.randn(count, 5), torch.arange(count) % 3)


@pytest.mark.parametrize(
    ("counts", "batch_size", "why"),
    [((4, 1, 1), 32, "worker 1 has only one"), ((4,), 1, "batch_size is 1"), ((), 1, "batch_size")],
)
def test_a_model_that_cannot_train_on_a_single_sample_is_refused_where_it_would_have_to(
    counts: tuple[int, ...], batch_size: int, why: str
) -> None:
    parts = [rows(count) for count in counts]
    named = re.escape(f"'1' (BatchNorm1d) failed in training on a single sample ({why}")
    with pytest.raises(TraceError, match=named):
        check_workload(Workload(normed(), parts, rows(4), ()), batch_size)
    check_workload(Workload(linear(), parts, rows(4), ()), batch_size)


def test_two_samples_are_enough_for_batch_norm() -> None:
    check_workload(Workload(normed(), [rows(2), rows(3)], rows(4), ()), 2)


def test_batch_norm_over_images_of_several_pixels_trains_on_a_single_one() -> None:
    model = nn.Sequential(
        nn.Unflatten(1, (1, 5)),
        nn.Conv1d(1, 4, 3),
        nn.BatchNorm1d(4),
        nn.Flatten(),
        nn.Linear(12, 3),
    )
    check_workload(Workload(model, [rows(1)], rows(4), ()), 1)


def test_to_look_whether_a_model_trains_on_one_sample_leaves_no_trace() -> None:
    model, samples = normed(), rows(4)
    dice = torch.get_rng_state()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(TraceError):
        check_workload(Workload(model, [samples], samples, ()), 1)
    assert torch.equal(torch.get_rng_state(), dice)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


class Reshapes(nn.Module):
    """Fails in training unless the batch suits it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.last, self.width = nn.Linear(5, 4), nn.Linear(4, 3), width

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs)
        if self.training:
            hidden = hidden.view(-1, self.width).view(len(hidden), -1)
        scores: Tensor = self.last(hidden)
        return scores


def test_a_model_that_fails_only_in_training_is_refused_by_what_it_says() -> None:
    with pytest.raises(TraceError) as refused:
        check_workload(Workload(Reshapes(31), [rows(4), rows(9)], rows(4), ()), 8)
    assert str(refused.value) == (
        "The model (Reshapes) failed in training on inputs float32 [8, 5]: "
        "shape '[-1, 31]' is invalid for input of size 32"
    )
    assert isinstance(refused.value.__cause__, RuntimeError)


def test_a_model_that_trains_on_whole_batches_need_not_on_two_samples() -> None:
    check_workload(Workload(Reshapes(32), [rows(4), rows(9)], rows(4), ()), 8)
    parts = [(each.inputs, each.labels) for each in (rows(16), rows(16))]
    model = Reshapes(32)
    result = adaptcl.run(
        model, parts, parts[0], strategy="fedavg", workers=2, rounds=1, epochs=1, batch_size=8
    )
    assert not torch.equal(result.model.get_parameter("last.weight"), model.last.weight)


def test_a_model_that_fails_only_backwards_is_refused() -> None:
    class Spoils(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            scores = super().forward(inputs).exp()
            return scores + scores.zero_() if self.training else scores

    with pytest.raises(TraceError, match=r"^The model \(Spoils\) failed in training .* inplace op"):
        check_workload(Workload(Spoils(5, 3), [rows(9)], rows(4), ()), 8)


def test_a_module_that_fails_in_training_is_named() -> None:
    class Raises(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            if self.training:
                raise RuntimeError("never in training")
            return super().forward(inputs)

    model = nn.Sequential(nn.ReLU(), Raises(5, 3))
    with pytest.raises(TraceError) as refused:
        check_workload(Workload(model, [rows(1)], rows(4), ()), 1)
    assert str(refused.value) == (
        "Module '1' (Raises) failed in training on inputs float32 [1, 5]: never in training"
    )
