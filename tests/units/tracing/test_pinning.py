"""Why units are pinned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adaptcl.units import describe
from adaptcl.units.tracing.flow import PINNED
from adaptcl.units.tracing.pinning import LONE, RETURNED
from adaptcl.units.tracing.trace import follow_units

SAMPLES = torch.randn(2, 6)


def reasons(model: nn.Module, sample: Tensor = SAMPLES) -> dict[str, tuple[str, ...]]:
    return {each.name: each.pinned for each in describe(model, sample).modules}


class Net(nn.Module):
    """Three layers; each test adds a forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.mix = nn.Softmax(-1)
        self.counts: Tensor
        self.register_buffer("counts", torch.arange(8))


@torch.no_grad()
def test_all_that_a_forward_pass_pins_has_a_cause(zoo: Mapping[str, Any]) -> None:
    for each in zoo.values():
        pinning = follow_units(each.net, each.images, explain=True).pinning
        assert pinning is not None
        for ids, owned in pinning.flow.slots.values():
            for one, root in zip(ids.tolist(), pinning.flow.coupling.roots(ids), strict=True):
                explained = pinning.why(one) is not None
                assert (root == PINNED and owned) <= (explained or one == PINNED)
                assert (root == PINNED) >= explained


def test_what_is_added_to_the_input_of_a_softmax_is_coupled_with_who_made_it() -> None:
    class Block(Net):
        def forward(self, x: Tensor) -> Tensor:
            x = self.a(x)
            out: Tensor = self.head(x + self.b(self.mix(x)))
            return out

    found = reasons(Block())
    assert found["a"] == ("a cut is not known to pass through softmax in mix",)
    assert found["b"] == (
        "coupled with a: a cut is not known to pass through softmax in mix",
    )  # fmt: skip


def test_what_was_coupled_before_is_pinned_with_it() -> None:
    class Late(Net):
        def forward(self, x: Tensor) -> Tensor:
            x = self.a(x)
            out: Tensor = self.head(self.mix(x + self.b(x)))
            return out

    assert reasons(Late())["b"] == (
        "coupled with a: a cut is not known to pass through softmax in mix",
    )


def test_what_is_coupled_with_the_output_of_a_softmax_says_so() -> None:
    class Plain(Net):
        def __init__(self, joined: Callable[[Tensor, Tensor], Tensor]) -> None:
            super().__init__()
            self.joined = joined

        def forward(self, x: Tensor) -> Tensor:
            hidden = F.relu(self.a(x))
            out: Tensor = self.head(self.joined(self.b(hidden), self.mix(hidden)))
            return out

    for joined in (torch.add, lambda one, other: torch.cat([one, other])):
        assert reasons(Plain(joined))["b"] == (
            "coupled with what softmax in mix gives, which is never cut",
        )


def test_what_a_sum_only_reads_of_a_layer_is_said_to_be_used() -> None:
    class Borrows(Net):
        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.b(F.relu(self.a(x))) + self.mix(self.b.bias))
            return out

    assert reasons(Borrows())["b"] == ("b.bias is also used by softmax in mix",)


def test_what_is_added_to_the_models_input_says_so() -> None:
    class Skip(Net):
        def forward(self, x: Tensor) -> Tensor:
            x = torch.cat([x, x[:, :2]], 1)
            out: Tensor = self.head(F.relu(x + self.b(x)))
            return out

    assert reasons(Skip())["b"] == ("coupled with the model's input, which is never cut",)


def test_buffers_of_whole_numbers_and_constants_are_named() -> None:
    class Shifted(Net):
        def __init__(self, what: str) -> None:
            super().__init__()
            self.what = what

        def forward(self, x: Tensor) -> Tensor:
            other = torch.ones(8) if self.what == "constant" else self.counts
            out: Tensor = self.head(self.a(x) + other)
            return out

    for what, noun in [("counts", "the buffer counts"), ("constant", "a constant")]:
        assert reasons(Shifted(what))["a"] == (f"coupled with {noun}, which is never cut",)


class Shared(nn.Module):
    """The same weight first on the input, then on its own output; `tied` by two modules."""

    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.a = nn.Linear(6, 6)
        self.b = nn.Linear(6, 6) if tied else self.a
        self.b.weight = self.a.weight
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(F.relu(self.b(F.relu(self.a(x)))))
        return out


@pytest.mark.parametrize("tied", [True, False])
def test_a_weight_that_is_used_twice_is_said_to_be(tied: bool) -> None:
    described = {each.name: each for each in describe(Shared(tied=tied), SAMPLES).modules}
    for name in ("a", "b") if tied else ("a",):
        assert described[name].pinned == ("a.weight is used twice, once on the model's input",)
        assert described[name].uses == 2
    assert described["head"].uses == 1
    assert "its weight is used twice" in str(describe(Shared(tied=tied), SAMPLES))


def test_a_weight_that_is_used_by_something_else_too_is_said_to_be() -> None:
    class Scored(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.body = nn.Embedding(9, 6), nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            return torch.cdist(F.relu(self.body(self.table(x).mean(1))), self.table.weight)

    found = reasons(Scored(), torch.randint(9, (2, 4)))
    assert found["table"] == ("table.weight is also used by cdist",)
    assert found["body"] == ("a cut is not known to pass through cdist",)


def test_what_is_coupled_with_what_the_model_returns_is_told_by_whom() -> None:
    class Residual(Net):
        def forward(self, x: Tensor) -> Tensor:
            x = self.a(x)
            out: Tensor = x + self.b(F.relu(x))
            return out

    found = reasons(Residual())
    assert found["a"] == (RETURNED,)
    assert found["b"] == (f"coupled with a: {RETURNED}",)


def test_a_single_output_cannot_be_cut() -> None:
    class Narrow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.head = nn.Linear(6, 1), nn.Linear(1, 3)

        def forward(self, x: Tensor) -> Tensor:
            scores: Tensor = self.head(self.one(x))
            return scores

    assert reasons(Narrow())["one"] == (LONE,)


def test_only_what_covers_the_units_is_blamed() -> None:
    class Gated(Net):
        def forward(self, x: Tensor) -> Tensor:
            gate = self.mix(self.b(self.a(x)))[:, :1]
            out: Tensor = self.head(self.a(x) * gate * self.counts)
            return out

    assert reasons(Gated())["a"][0] == "coupled with the buffer counts, which is never cut"


def test_what_is_joined_to_a_parameter_is_pinned_with_it() -> None:
    class Tokens(Net):
        def __init__(self) -> None:
            super().__init__()
            self.cls = nn.Parameter(torch.zeros(1, 1, 8))

        def forward(self, x: Tensor) -> Tensor:
            x = self.a(x).unsqueeze(1)
            x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1)
            x = x + self.mix(x)
            out: Tensor = self.head((x + self.b(x))[:, 0])
            return out

    found = reasons(Tokens())
    why = "a cut is not known to pass through softmax in mix"
    assert found["a"] == found["b"] == (f"coupled with the model: {why}",)
    assert found[""] == (why,)
