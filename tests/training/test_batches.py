"""Which samples a mini-batch holds, and how its images move."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from adaptcl.training.batches import (
    batches,
    crop_and_flip,
    draw_moves,
    mini_batch_count,
    mini_batch_count_of_round,
)


def drawn(samples: int, batch_size: int, count: int, seed: int = 0) -> list[Tensor]:
    return list(batches(samples, batch_size, count, torch.Generator().manual_seed(seed)))


def test_mini_batches_are_epochs_times_the_batches_of_an_epoch() -> None:
    for samples, batch_size, epochs, expected in (
        (100, 10, 1, 10),
        (100, 10, 2, 20),
        (100, 10, 0.5, 5),
        (100, 10, 0.25, 2),
        (100, 10, 0.01, 1),
        (105, 10, 1, 11),
        (101, 10, 1, 10),  # a leftover sample joins the last batch
        (7, 64, 1, 1),
        (1, 64, 3, 3),
    ):
        assert mini_batch_count(samples, batch_size, epochs) == expected


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
    found = [mini_batch_count_of_round(samples, batch_size, each, number) for number in numbers]
    assert sum(found) == rounds * mini_batch_count(samples, batch_size, epochs)
    assert max(found) - min(found) <= 1


@given(st.integers(1, 60), st.integers(1, 20), st.integers(1, 3), st.integers(0, 99))
def test_every_epoch_is_a_permutation_of_the_samples(
    samples: int, batch_size: int, epochs: int, seed: int
) -> None:
    count = mini_batch_count(samples, batch_size, epochs)
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
    sizes = [
        len(each) for each in drawn(samples, batch_size, mini_batch_count(samples, batch_size, 1))
    ]
    assert min(sizes) >= 2
    assert all(size == batch_size for size in sizes[:-1])
    assert sizes[-1] <= batch_size + 1


def test_a_part_of_an_epoch_is_its_beginning() -> None:
    assert [each.tolist() for each in drawn(50, 10, 7)][:3] == [
        each.tolist() for each in drawn(50, 10, 3)
    ]


def test_each_epoch_and_each_seed_has_another_order() -> None:
    one = drawn(40, 40, 2)
    assert one[0].tolist() != one[1].tolist()
    assert one[0].tolist() == drawn(40, 40, 1)[0].tolist()
    assert one[0].tolist() != drawn(40, 40, 1, seed=1)[0].tolist()


# Augmentation.


def images(count: int = 6, channels: int = 2, height: int = 5, width: int = 7) -> Tensor:
    """Images in which no two values are equal and none is zero."""
    numbers = torch.arange(1.0, count * channels * height * width + 1)
    return numbers.view(count, channels, height, width)


def moves(down: int, right: int, mirrored: int) -> Tensor:
    return torch.tensor([[down], [right], [mirrored]])


@given(st.integers(0, 8), st.integers(0, 8), st.integers(0, 1))
def test_an_image_is_a_window_of_itself_with_a_border_of_zeros(
    down: int, right: int, mirrored: int
) -> None:
    whole = images(1)
    window = F.pad(whole, (4, 4, 4, 4))[:, :, down : down + 5, right : right + 7]
    expected = window.flip(3) if mirrored else window
    assert torch.equal(crop_and_flip(whole, moves(down, right, mirrored)), expected)


@given(st.integers(0, 999))
def test_each_image_moves_separately_and_its_channels_together(seed: int) -> None:
    whole = images()
    drawn = draw_moves(len(whole), torch.Generator().manual_seed(seed))
    moved = crop_and_flip(whole, drawn)
    assert moved.shape == whole.shape
    assert moved.is_contiguous()
    for number in range(len(whole)):
        alone = crop_and_flip(whole[number : number + 1], drawn[:, number : number + 1])
        assert torch.equal(moved[number], alone[0])
        assert set(moved[number].flatten().tolist()) <= {0.0, *whole[number].flatten().tolist()}
    assert torch.equal(moved[:, 0] == 0, moved[:, 1] == 0)


def test_what_is_drawn_depends_on_the_generator_alone() -> None:
    one, other, third = (draw_moves(50, torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert torch.equal(one, other)
    assert not torch.equal(one, third)


def test_all_moves_are_drawn_equally_often() -> None:
    drawn = draw_moves(9000, torch.Generator().manual_seed(0))
    assert drawn.shape == (3, 9000)
    for shifts in drawn[:2]:
        counts = torch.bincount(shifts, minlength=9)
        assert len(counts) == 9
        assert counts.min() > 850
    assert drawn[2].float().mean() == pytest.approx(0.5, abs=0.03)


def test_what_is_no_image_is_returned_unchanged() -> None:
    table = torch.randn(4, 9)
    assert crop_and_flip(table, draw_moves(4, torch.Generator())) is table
