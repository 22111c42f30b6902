from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from adaptcl.training.batches import batches, smallest_batch, steps, steps_of_round


def drawn(samples: int, batch_size: int, count: int, seed: int = 0) -> list[Tensor]:
    return list(batches(samples, batch_size, count, torch.Generator().manual_seed(seed)))


@pytest.mark.parametrize(
    ("samples", "batch_size", "epochs", "expected"),
    [
        (100, 10, 1, 10),
        (100, 10, 2, 20),
        (100, 10, 0.5, 5),
        (100, 10, 0.25, 2),
        (100, 10, 0.01, 1),
        (105, 10, 1, 11),
        (101, 10, 1, 10),  # a rest of one sample is no batch of its own
        (7, 64, 1, 1),
        (1, 64, 3, 3),
    ],
)
def test_steps_are_epochs_times_the_batches_of_an_epoch(
    samples: int, batch_size: int, epochs: float, expected: int
) -> None:
    assert steps(samples, batch_size, epochs) == expected


@given(
    st.integers(1, 600),
    st.integers(1, 64),
    st.integers(1, 5),
    st.integers(1, 20),
    st.integers(1, 9),
)
def test_rounds_of_fractions_of_an_epoch_add_up_to_whole_epochs(
    samples: int, batch_size: int, parts: int, rounds: int, epochs: int
) -> None:
    each = epochs / parts
    numbers = range(1, rounds * parts + 1)
    found = [steps_of_round(samples, batch_size, each, number) for number in numbers]
    assert sum(found) == rounds * steps(samples, batch_size, epochs)
    assert max(found) - min(found) <= 1


@given(st.integers(1, 60), st.integers(1, 20), st.integers(1, 3), st.integers(0, 99))
def test_every_epoch_is_a_permutation_of_the_samples(
    samples: int, batch_size: int, epochs: int, seed: int
) -> None:
    count = steps(samples, batch_size, epochs)
    found = drawn(samples, batch_size, count, seed)
    assert len(found) == count
    each = count // epochs
    for epoch in range(epochs):
        seen = torch.cat(found[epoch * each : (epoch + 1) * each])
        assert seen.sort().values.tolist() == list(range(samples))


@given(st.integers(2, 60), st.integers(2, 20))
def test_no_batch_has_a_single_sample_and_only_the_last_has_another_size(
    samples: int, batch_size: int
) -> None:
    sizes = [len(each) for each in drawn(samples, batch_size, steps(samples, batch_size, 1))]
    assert min(sizes) >= 2
    assert all(size == batch_size for size in sizes[:-1])
    assert sizes[-1] <= batch_size + 1


@given(st.integers(1, 60), st.integers(1, 20))
def test_the_smallest_batch_is_known_before_any_is_drawn(samples: int, batch_size: int) -> None:
    epoch = drawn(samples, batch_size, steps(samples, batch_size, 1))
    assert smallest_batch(samples, batch_size) == min(map(len, epoch))


def test_a_part_of_an_epoch_is_its_beginning() -> None:
    assert [each.tolist() for each in drawn(50, 10, 7)][:3] == [
        each.tolist() for each in drawn(50, 10, 3)
    ]


def test_epochs_have_orders_of_their_own_and_seeds_too() -> None:
    one = drawn(40, 40, 2)
    assert one[0].tolist() != one[1].tolist()
    assert one[0].tolist() == drawn(40, 40, 1)[0].tolist()
    assert one[0].tolist() != drawn(40, 40, 1, seed=1)[0].tolist()
