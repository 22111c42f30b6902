"""Models of which the values of the input decide what they use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from adaptcl.units import UnitMap, describe, submodel, trace, zero


class Mixture(nn.Module):
    """Each sample goes to the expert that its first number names."""

    def __init__(self, *, steered: bool = True) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(6, 8), nn.Linear(8, 3)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 10), nn.ReLU(), nn.Linear(10, 8)) for _ in range(4)
        )
        self.steered = steered

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.stem(x).relu()
        chosen = [int(one) for one in x[:, 0]] if self.steered else [0, 1] * (len(x) // 2)
        given = [self.experts[e](hidden[i : i + 1]) for i, e in enumerate(chosen)]
        scores: Tensor = self.head(hidden + torch.cat(given))
        return scores


def samples(*experts: int) -> Tensor:
    x = torch.randn(len(experts), 6, generator=torch.Generator().manual_seed(0))
    x[:, 0] = torch.tensor(experts)
    return x


def layers(units: UnitMap) -> list[str]:
    return [layer.name for layer in units.layers]


@torch.no_grad()
def test_experts_that_later_samples_reach_are_cut_right() -> None:
    model, x = Mixture().eval(), samples(0, 1, 1, 2, 3, 0)
    units = trace(model, x)
    assert layers(units) == ["stem", *(f"experts.{each}.0" for each in range(4))]
    kept = units.everything()
    kept[1::2] = False
    zeroed = submodel(model, units, units.everything(), zero(model.state_dict(), units, kept))
    torch.testing.assert_close(submodel(model, units, kept)(x), zeroed(x))


@torch.no_grad()
def test_what_an_expert_that_no_sample_reaches_may_read_or_write_is_never_cut() -> None:
    model, few = Mixture().eval(), samples(0, 1)
    units = trace(model, few)
    assert layers(units) == ["experts.0.0", "experts.1.0"]
    kept = units.everything()
    kept[1::2] = False
    submodel(model, units, kept)(samples(2, 3))
    described = {each.name: each.pinned for each in describe(model, few).modules}
    assert described["stem"] == ("no sample reaches experts.2.0, which may use them",)


def test_parts_that_no_value_can_switch_on_pin_nothing() -> None:
    units = trace(Mixture(steered=False), samples(0, 1))
    assert layers(units) == ["stem", "experts.0.0", "experts.1.0"]


class Branching(nn.Module):
    """Takes one side for all inputs in the tests."""

    def __init__(self, decide: Callable[[Tensor], Any], other: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(6, 8), nn.Linear(8, 3)
        self.decide, self.other = decide, other

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.stem(x)
        hidden = hidden.relu() if self.decide(x) else self.other(hidden)
        scores: Tensor = self.head(hidden)
        return scores


def always(x: Tensor) -> Tensor:
    return x.mean() > -1e9


def refused(hidden: Tensor) -> Tensor:
    raise ValueError("not this way")


OTHER_SIDES: dict[str, tuple[Callable[[Tensor], Tensor], bool]] = {
    "as good": (torch.tanh, True),
    "mixing units": (lambda hidden: hidden.softmax(-1), False),
    "told the size": (lambda hidden: hidden.reshape(-1, 4).relu().reshape(-1, 8), False),
    "an error": (refused, True),
}


@pytest.mark.parametrize(("other", "is_cut"), OTHER_SIDES.values(), ids=OTHER_SIDES.keys())
def test_the_side_of_a_branch_that_no_sample_takes_counts_too(
    other: Callable[[Tensor], Tensor], is_cut: bool
) -> None:
    units = trace(Branching(always, other), torch.randn(4, 6))
    assert layers(units) == ["stem"] * is_cut


def test_a_loop_that_values_end_is_traced_once_more_and_ends() -> None:
    class Shrinking(Branching):
        def forward(self, x: Tensor) -> Tensor:
            hidden = self.stem(x)
            while hidden.abs().sum() > 1:
                hidden = hidden / 2
            scores: Tensor = self.head(hidden)
            return scores

    assert layers(trace(Shrinking(always, torch.tanh), torch.randn(4, 6))) == ["stem"]


def test_what_a_module_holds_when_a_number_leaves_the_tensors_is_never_cut() -> None:
    model = Branching(lambda x: x.mean().item() > -1e9, lambda hidden: hidden.softmax(-1))
    (stem, _) = describe(model, torch.randn(4, 6)).modules
    assert stem.pinned == ("Python may decide by a number from item()",)
