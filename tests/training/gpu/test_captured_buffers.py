"""The tables and tensors that captured steps read and write, on a CPU."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from adaptcl.training.gpu.captured_buffers import BatchTable, ModelTensors
from adaptcl.units import State

CPU = torch.device("cpu")


def read(table: BatchTable, sizes: list[int]) -> list[tuple[Tensor, Tensor]]:
    """What steps on batches of these sizes see, one after the other."""
    seen = []
    for number, size in enumerate(sizes):
        seen.append(table.row(size))
        table.note(torch.tensor(float(number)))
        table.move_on()
    return seen


@settings(max_examples=30)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(0, 1000))
def test_steps_see_the_batches_in_their_order(sizes: list[int], begin: int) -> None:
    batches = [torch.randperm(20)[:size] for size in sizes]
    table = BatchTable(8, 9, moves=False, device=CPU)
    for _ in range(2):  # the second round begins at the first row again
        table.fill(batches, None, begin)
        seen = read(table, sizes)
        expected = [indexes + begin for indexes in batches]
        assert all(map(torch.equal, (indexes for indexes, _ in seen), expected))
        assert table.losses(len(sizes)).tolist() == list(range(len(sizes)))


@pytest.mark.parametrize("sizes", [[4, 4, 2], [4, 4, 5], [3]])
def test_moves_stand_beside_their_batch(sizes: list[int]) -> None:
    batches = [torch.arange(size) for size in sizes]
    moves = [torch.randint(0, 9, (3, size)) for size in sizes]
    table = BatchTable(4, 5, moves=True, device=CPU)
    table.fill(batches, moves, 100)
    seen = read(table, sizes)
    assert all(map(torch.equal, (found for _, found in seen), moves))
    assert all(map(torch.equal, (found for found, _ in seen), (each + 100 for each in batches)))


def test_a_table_knows_how_much_it_holds() -> None:
    table = BatchTable(4, 5, moves=False, device=CPU)
    assert table.holds(4, 5)
    assert not table.holds(5, 5)
    assert not table.holds(4, 6)


def test_losses_stay_when_the_next_round_comes() -> None:
    table = BatchTable(4, 5, moves=False, device=CPU)
    batches = [torch.arange(2)] * 2
    table.fill(batches, None, 0)
    read(table, [2, 2])
    losses = table.losses(2)
    table.fill(batches, None, 0)
    table.note(torch.tensor(7.0))
    assert losses.tolist() == [0.0, 1.0]


# Tensors.


def model() -> nn.Module:
    """Filters with channels last, vectors, a matrix, counters, and one tensor of another type."""
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 5, 1), nn.Flatten(), nn.Linear(45, 2)
    )
    net.register_buffer("wide", torch.zeros(3, dtype=torch.float64))
    return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def a_state(net: nn.Module, seed: int) -> State:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randint(0, 99, t.shape, generator=generator).to(t.dtype)
        for name, t in net.state_dict().items()
    }


def same(one: State, other: State) -> bool:
    return list(one) == list(other) and all(
        torch.equal(one[name], other[name]) and one[name].dtype == other[name].dtype for name in one
    )


def test_the_model_takes_on_the_values_where_its_tensors_lie() -> None:
    net = model()
    places = [tensor.data_ptr() for tensor in net.state_dict().values()]
    state = a_state(net, 1)
    ModelTensors(net).load(state)
    assert same(dict(net.state_dict()), state)
    assert [tensor.data_ptr() for tensor in net.state_dict().values()] == places
    assert not net[0].weight.is_contiguous()  # type: ignore[index]


def test_copies_are_in_the_usual_layout_and_stay_when_the_model_goes_on() -> None:
    net = model()
    tensors = ModelTensors(net)
    first = a_state(net, 1)
    tensors.load(first)
    copies = tensors.copied()
    tensors.load(a_state(net, 2))
    assert same(copies, first)
    assert all(t.is_contiguous() and not t.requires_grad for t in copies.values())


def test_what_was_loaded_is_left_alone_when_the_model_goes_on() -> None:
    net = model()
    state, untouched = a_state(net, 1), a_state(net, 1)
    ModelTensors(net).load(state)
    with torch.no_grad():
        for tensor in net.state_dict().values():
            tensor.add_(1)
    assert same(state, untouched)
