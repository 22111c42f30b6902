from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from adaptcl.training.task_generator import ForwardMode


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


def test_it_sees_the_operations_of_every_forward_pass_and_no_others() -> None:
    diary = Diary()
    model = diary.lead(Twice())
    for _ in range(2):
        x = torch.ones(3, requires_grad=True)
        model(x).sum().backward()
    assert diary.seen == ["begin", "mul", "end"] * 2


def test_a_pass_that_fails_is_over_too() -> None:
    class Failing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError

    diary = Diary()
    with pytest.raises(ValueError):  # noqa: PT011
        diary.lead(Failing())(torch.ones(3))
    torch.ones(3).relu()
    assert diary.seen == ["begin", "end"]
