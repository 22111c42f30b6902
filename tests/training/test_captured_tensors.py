from __future__ import annotations

import torch
from torch import nn

from adaptcl.training.gpu.captured_buffers import Tensors
from adaptcl.units import State


def model() -> nn.Module:
    """Filters with channels last, vectors, a matrix, counters, and one tensor of another type."""
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 5, 1), nn.Flatten(), nn.Linear(45, 2)
    )
    net.register_buffer("wide", torch.zeros(3, dtype=torch.float64))
    return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def a_state(net: nn.Module, seed: int) -> State:
    dice = torch.Generator().manual_seed(seed)
    return {
        name: torch.randint(0, 99, t.shape, generator=dice).to(t.dtype)
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
    Tensors(net).load(state)
    assert same(dict(net.state_dict()), state)
    assert [tensor.data_ptr() for tensor in net.state_dict().values()] == places
    assert not net[0].weight.is_contiguous()  # type: ignore[index]


def test_copies_are_in_the_usual_layout_and_stay_when_the_model_goes_on() -> None:
    net = model()
    tensors = Tensors(net)
    first = a_state(net, 1)
    tensors.load(first)
    copies = tensors.copied()
    tensors.load(a_state(net, 2))
    assert same(copies, first)
    assert all(t.is_contiguous() and not t.requires_grad for t in copies.values())


def test_what_was_loaded_is_left_alone_when_the_model_goes_on() -> None:
    net = model()
    state, untouched = a_state(net, 1), a_state(net, 1)
    Tensors(net).load(state)
    with torch.no_grad():
        for tensor in net.state_dict().values():
            tensor.add_(1)
    assert same(state, untouched)
