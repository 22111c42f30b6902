from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from adaptcl.training.gpu.captured_buffers import Table

CPU = torch.device("cpu")


def read(table: Table, sizes: list[int]) -> list[tuple[Tensor, Tensor]]:
    """What steps on batches of these sizes see, one after the other."""
    seen = []
    for number, size in enumerate(sizes):
        seen.append(table.row(size))
        table.note(torch.tensor(float(number)))
        table.move_on()
    return seen


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(0, 1000))
def test_steps_see_the_batches_in_their_order(sizes: list[int], begin: int) -> None:
    batches = [torch.randperm(20)[:size] for size in sizes]
    table = Table(8, 9, moves=False, device=CPU)
    for _ in range(2):  # the second round begins at the first row again
        table.fill(batches, None, begin)
        seen = read(table, sizes)
        expected = [indexes + begin for indexes in batches]
        assert all(map(torch.equal, (indexes for indexes, _ in seen), expected))
        assert table.losses(len(sizes)).tolist() == list(range(len(sizes)))


@pytest.mark.parametrize("sizes", [[4, 4, 2], [4, 4, 5], [4, 4, 4], [3]])
def test_moves_stand_beside_their_batch(sizes: list[int]) -> None:
    batches = [torch.arange(size) for size in sizes]
    moves = [torch.randint(0, 9, (3, size)) for size in sizes]
    table = Table(4, 5, moves=True, device=CPU)
    table.fill(batches, moves, 100)
    seen = read(table, sizes)
    assert all(map(torch.equal, (found for _, found in seen), moves))
    assert all(map(torch.equal, (found for found, _ in seen), (each + 100 for each in batches)))


def test_a_table_knows_how_much_it_holds() -> None:
    table = Table(4, 5, moves=False, device=CPU)
    assert table.holds(4, 5)
    assert not table.holds(5, 5)
    assert not table.holds(4, 6)


def test_losses_stay_when_the_next_round_comes() -> None:
    table = Table(4, 5, moves=False, device=CPU)
    batches = [torch.arange(2)] * 2
    table.fill(batches, None, 0)
    read(table, [2, 2])
    losses = table.losses(2)
    table.fill(batches, None, 0)
    table.note(torch.tensor(7.0))
    assert losses.tolist() == [0.0, 1.0]
