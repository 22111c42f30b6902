"""A task's generator serves what its models draw in their forward passes, and nothing else."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from adaptcl.training.cpu.task_generator import ForwardMode, QuickGenerator, TaskGenerator

KINDS = (TaskGenerator, QuickGenerator)
DRAWING: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda x: F.dropout(x, 0.5),
    "alpha dropout": lambda x: F.alpha_dropout(x, training=True),
    "rand": lambda x: x * torch.rand(40),
    "randn_like": lambda x: x + torch.randn_like(x),
    "randint": lambda x: x + torch.randint(0, 9, (40,)),
    "randperm": lambda x: x[:, torch.randperm(40)],
    "exponential": lambda x: x + torch.empty(40).exponential_(),
    "bernoulli": lambda x: x * torch.bernoulli(torch.full((40,), 0.5)),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.5),
}


def test_a_tasks_generator_draws_what_the_shared_one_would_and_leaves_it_alone() -> None:
    x = torch.randn(5, 40)
    for name, draw in DRAWING.items():
        torch.manual_seed(3)
        expected = [draw(x), draw(x)]
        before = torch.get_rng_state()
        with TaskGenerator(3):
            found = [draw(x), draw(x)]
        assert torch.equal(before, torch.get_rng_state()), name
        assert all(map(torch.equal, expected, found)), name
        assert not torch.equal(found[0], found[1]), name


@pytest.mark.parametrize("kind", KINDS)
def test_a_generator_that_is_given_is_used(kind: type[TaskGenerator]) -> None:
    def draw() -> Tensor:
        mine = torch.Generator().manual_seed(1)
        return torch.cat(
            [
                torch.rand(3, generator=mine),
                torch.empty(3).normal_(generator=mine),
                torch.empty(40).bernoulli_(0.3, generator=mine),
            ]
        )

    with kind(5):
        inside = draw()
    assert torch.equal(inside, draw())


@pytest.mark.parametrize("kind", KINDS)
def test_another_thread_draws_from_the_shared_generator_all_the_same(
    kind: type[TaskGenerator],
) -> None:
    drawn: list[Tensor] = []
    torch.manual_seed(11)
    expected = torch.empty(40).bernoulli_(0.5)
    torch.manual_seed(11)
    with kind(5):
        thread = threading.Thread(target=lambda: drawn.append(torch.empty(40).bernoulli_(0.5)))
        thread.start()
        thread.join()
    assert torch.equal(drawn[0], expected)


# The faster dropout.


@settings(max_examples=50)
@given(
    probability=st.one_of(st.floats(0, 1), st.sampled_from([0.0, 1.0, 1e-9, 1 - 1e-9, 0.25])),
    seed=st.integers(0, 2**63 - 1),
)
def test_as_many_ones_as_the_probability_says(probability: float, seed: int) -> None:
    count = 20_000
    with QuickGenerator(seed):
        mask = torch.full((count,), 7.0).bernoulli_(probability)
    assert set(mask.tolist()) <= {0.0, 1.0}
    deviation = math.sqrt(probability * (1 - probability) / count)
    assert abs(float(mask.mean()) - probability) <= 6 * deviation + 2**-16


def test_masks_of_any_length_are_filled() -> None:
    for count in (0, 1, 2, 3, 4, 5, 127):
        with QuickGenerator(1):
            mask = torch.full((count,), 7.0).bernoulli_(0.5)
        assert bool((mask < 2).all())


def test_neighbours_are_drawn_apart_from_each_other() -> None:
    with QuickGenerator(2):
        mask = torch.empty(100_000).bernoulli_(0.3)
    centred = mask - mask.mean()
    for distance in range(1, 9):
        together = float((centred[:-distance] * centred[distance:]).mean())
        assert abs(together) < 6 * 0.3 * 0.7 / math.sqrt(100_000)


@pytest.mark.parametrize(
    "mask",
    [
        torch.empty(4, 6, 5, 5).to(memory_format=torch.channels_last),
        torch.empty(4, 6, 5, 5)[:, ::2],
        torch.empty(40, 30).t(),
        torch.empty(3, 40, dtype=torch.float64)[1:],
        torch.empty(40, dtype=torch.bool),
    ],
    ids=["channels last", "with gaps", "transposed", "a part of another", "truth values"],
)
def test_whatever_the_layout_each_entry_is_drawn_and_nothing_else_is_written(mask: Tensor) -> None:
    whole = mask.new_full((), 1).expand(1).repeat(mask.untyped_storage().nbytes() // mask.itemsize)
    mask = whole.as_strided(mask.shape, mask.stride(), mask.storage_offset())
    with QuickGenerator(3):
        mask.bernoulli_(0.5)
    zeros = int((mask == 0).sum())
    assert 0.2 * mask.numel() < zeros < 0.8 * mask.numel()
    assert int((whole == 0).sum()) == zeros


def test_gradients_go_where_the_values_went() -> None:
    x = torch.ones(50, 40, requires_grad=True)
    with QuickGenerator(4):
        y = nn.Dropout(0.25)(x)
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, y.detach())
    assert bool(torch.isclose(y, y.new_tensor(4 / 3))[y != 0].all())
    assert 0 < int((y == 0).sum()) < y.numel()


# Forward passes.


class Diary(ForwardMode):  # type: ignore[no-untyped-call]
    """Writes down what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def begin(self) -> None:
        self.seen.append("begin")

    def end(self) -> None:
        self.seen.append("end")

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.seen.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


class Twice(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2


def test_a_forward_mode_sees_the_operations_of_every_forward_pass_and_no_others() -> None:
    diary = Diary()
    model = diary.attach(Twice())
    for _ in range(2):
        x = torch.ones(3, requires_grad=True)
        model(x).sum().backward()
    assert diary.seen == ["begin", "mul", "end"] * 2


def test_a_forward_mode_ends_with_a_pass_that_fails() -> None:
    class Failing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError

    diary = Diary()
    with pytest.raises(ValueError):  # noqa: PT011
        diary.attach(Failing())(torch.ones(3))
    torch.ones(3).relu()
    assert diary.seen == ["begin", "end"]
