from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from adaptcl.training.batches import crop_and_flip, draw_moves


def images(count: int = 6, channels: int = 2, height: int = 5, width: int = 7) -> Tensor:
    """Images in which no two values are equal and none is zero."""
    numbers = torch.arange(1.0, count * channels * height * width + 1)
    return numbers.view(count, channels, height, width)


def moves(down: int, right: int, mirrored: int) -> Tensor:
    return torch.tensor([[down], [right], [mirrored]])


def test_the_middle_position_without_mirroring_changes_nothing() -> None:
    assert torch.equal(crop_and_flip(images(1), moves(4, 4, 0)), images(1))


def test_mirroring_turns_an_image_around() -> None:
    assert torch.equal(crop_and_flip(images(1), moves(4, 4, 1)), images(1).flip(3))


@given(st.integers(0, 8), st.integers(0, 8), st.integers(0, 1))
def test_an_image_is_a_window_of_itself_with_a_border_of_zeros(
    down: int, right: int, mirrored: int
) -> None:
    whole = images(1)
    window = F.pad(whole, (4, 4, 4, 4))[:, :, down : down + 5, right : right + 7]
    expected = window.flip(3) if mirrored else window
    assert torch.equal(crop_and_flip(whole, moves(down, right, mirrored)), expected)


@given(st.integers(0, 999))
def test_every_image_moves_on_its_own_and_all_its_channels_together(seed: int) -> None:
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


def test_what_is_no_image_comes_back_as_it_is() -> None:
    table = torch.randn(4, 9)
    assert crop_and_flip(table, draw_moves(4, torch.Generator())) is table
