"""Why units are pinned, as `describe` says it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adaptcl.units import describe
from adaptcl.units.tracing.coupling import LONE
from adaptcl.units.tracing.forward import RETURNED

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


def test_what_is_joined_with_the_output_of_a_softmax_is_pinned_as_its_input_is() -> None:
    class Plain(Net):
        def __init__(self, joined: Callable[[Tensor, Tensor], Tensor]) -> None:
            super().__init__()
            self.joined = joined

        def forward(self, x: Tensor) -> Tensor:
            hidden = F.relu(self.a(x))
            out: Tensor = self.head(self.joined(self.b(hidden), self.mix(hidden)))
            return out

    added, joined = Plain(torch.add), Plain(lambda one, other: torch.cat([one, other]))
    why = "coupled with a: a cut is not known to pass through softmax in mix"
    assert reasons(added)["b"] == (why,)
    assert reasons(joined)["b"] == ("joined with something that is never cut by cat",)


def test_what_is_added_to_the_models_input_a_buffer_or_a_constant_says_where() -> None:
    class Skip(Net):
        def forward(self, x: Tensor) -> Tensor:
            x = torch.cat([x, x[:, :2]], 1)
            out: Tensor = self.head(F.relu(x + self.b(x)))
            return out

    class Shifted(Net):
        def __init__(self, what: str) -> None:
            super().__init__()
            self.what = what

        def forward(self, x: Tensor) -> Tensor:
            other = torch.ones(8) if self.what == "constant" else self.counts
            out: Tensor = self.head(self.a(x) + other)
            return out

    for found in (
        reasons(Skip())["b"],
        reasons(Shifted("counts"))["a"],
        reasons(Shifted("constant"))["a"],
    ):
        assert found == ("joined with something that is never cut by add",)


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
        assert described[name].pinned == (
            f"joined with something that is never cut by linear in {'b' if tied else 'a'}, "
            "which uses a.weight again",
        )
        assert described[name].uses == 2
    assert described["head"].uses == 1
    assert "its weight is used twice" in str(describe(Shared(tied=tied), SAMPLES))


def test_a_weight_is_pinned_by_an_operation_that_is_no_layer() -> None:
    class Scored(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.body = nn.Embedding(9, 6), nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            return torch.cdist(F.relu(self.body(self.table(x).mean(1))), self.table.weight)

    found = reasons(Scored(), torch.randint(9, (2, 4)))
    assert found["table"] == found["body"] == ("a cut is not known to pass through cdist",)


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

    assert reasons(Gated())["a"][0] == "joined with something that is never cut by mul"


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
