"""With which power of its unit's share an activation in front of a norm grows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from adaptcl.units import trace


def scale_powers(model: nn.Module, sample: Tensor | None = None) -> dict[str, list[int]]:
    units = trace(model, torch.randn(2, 3, 8, 8) if sample is None else sample)
    return {name: powers.tolist() for name, powers in units.scale_powers.items()}


def before_a_norm(*between: nn.Module, frozen: Sequence[str] = ()) -> nn.Module:
    """A convolution of four channels and something before a batch norm; the rest classifies."""
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), *between, nn.BatchNorm2d(4), nn.Conv2d(4, 5, 1), nn.Flatten(),
        nn.LazyLinear(2),
    )  # fmt: skip
    model(torch.randn(2, 3, 8, 8))
    for name in frozen:
        model.get_parameter(name).requires_grad_(False)
    return model


def depthwise() -> nn.Module:
    return nn.Conv2d(4, 4, 1, groups=4, bias=False)


def test_a_plain_convolution_grows_as_its_filter_does(zoo: Mapping[str, Any]) -> None:
    for each in zoo.values():
        modules = dict(each.net.named_modules())
        norms = {f"{n}.running_var" for n, m in modules.items() if isinstance(m, nn.BatchNorm2d)}
        grouped = any(isinstance(m, nn.Conv2d) and m.groups > 1 for m in modules.values())
        squashed = any(isinstance(m, nn.Sigmoid) for m in modules.values())
        assert grouped or squashed or not norms & each.units.scale_powers.keys()
    # Groups that all lose the same channels grow as any other filter.
    assert zoo["shuffled groups"].units.scale_powers == {}


def test_what_belongs_to_the_same_unit_adds_its_power() -> None:
    cases: list[tuple[list[nn.Module], int]] = [
        ([depthwise()], 2),
        ([depthwise(), depthwise()], 3),
        ([nn.ReLU(), depthwise()], 2),
        ([nn.SiLU(), depthwise()], 2),
        ([nn.ReLU6(), depthwise()], 2),
        ([nn.BatchNorm2d(4), nn.ReLU(), depthwise()], 2),
        ([nn.BatchNorm2d(4, affine=False), nn.ReLU()], 0),
        ([nn.GroupNorm(4, 4), depthwise()], 2),
        ([nn.PReLU(4), nn.AvgPool2d(2), depthwise()], 2),
        ([nn.Sigmoid()], 0),
    ]
    for between, power in cases:
        found = scale_powers(before_a_norm(*between))
        norm = len(between) + 1
        assert found[f"{norm}.running_mean"] == found[f"{norm}.running_var"] == [power] * 4


def test_what_is_frozen_adds_nothing() -> None:
    cases: list[tuple[list[nn.Module], list[str], int | None]] = [
        ([], ["0.weight", "0.bias"], 0),
        ([depthwise()], ["1.weight"], None),
        ([depthwise()], ["0.weight", "0.bias"], None),
        ([depthwise()], ["0.weight", "0.bias", "1.weight"], 0),
        ([nn.BatchNorm2d(4), depthwise()], ["1.weight", "1.bias", "2.weight"], 0),
    ]
    for between, frozen, power in cases:
        found = scale_powers(before_a_norm(*between, frozen=frozen))
        expected = None if power is None else [power] * 4
        assert found.get(f"{len(between) + 1}.running_var") == expected


class Joined(nn.Module):
    """Two convolutions side by side or on top of each other, before one norm."""

    def __init__(self, join: Callable[[Tensor, Tensor], Tensor], width: int) -> None:
        super().__init__()
        self.join = join
        self.one, self.other = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3)
        self.norm, self.head = nn.BatchNorm2d(width), nn.Conv2d(width, 2, 6)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.norm(self.join(self.one(x), self.other(x))))
        return scores


def test_units_side_by_side_have_powers_of_their_own() -> None:
    model = Joined(lambda one, other: torch.cat([one, other], 1), 8)
    assert scale_powers(model) == {}
    model.one.requires_grad_(False)
    assert scale_powers(model)["norm.running_mean"] == [0] * 4 + [1] * 4


def test_a_sum_keeps_the_power_and_a_product_adds_them() -> None:
    assert scale_powers(Joined(torch.add, 4)) == {}
    assert scale_powers(Joined(torch.mul, 4))["norm.running_var"] == [2] * 4


def test_a_norm_before_two_layers_takes_the_lower_power() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
            self.depth, self.head = depthwise(), nn.Conv2d(4, 2, 6)

        def forward(self, x: Tensor) -> Tensor:
            x = self.norm(self.first(x))
            scores: Tensor = self.head(self.norm(self.depth(x)))
            return scores

    assert scale_powers(Twice()) == {}


def test_asking_an_operation_leaves_what_it_writes_into_alone() -> None:
    seen: list[Tensor] = []

    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.first(x)
            total = torch.zeros(len(x), 4)
            total += hidden
            seen.append(total - hidden)
            scores: Tensor = self.head(torch.relu_(hidden) + total)
            return scores

    trace(Sums(), torch.randn(2, 3))
    assert seen
    assert all(not each.any() for each in seen)
