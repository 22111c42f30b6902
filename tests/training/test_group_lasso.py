"""The penalty and its gradient are those of the definition, for every shape of a unit."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adaptcl.training.group_lasso import GroupLasso
from adaptcl.units import FIXED, Kept, UnitMap, submodel, trace


class Residual(nn.Module):
    """The filters of `stem` and `block` are added, so a unit owns rows of both."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 5, 3, padding=1), nn.BatchNorm2d(5)
        self.block = nn.Sequential(nn.Conv2d(5, 4, 1), nn.ReLU(), nn.Conv2d(4, 5, 1))
        self.head = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(x)))
        scores: Tensor = self.head((x + self.block(x)).mean((2, 3)))
        return scores


class BesideTheInput(nn.Module):
    """The batch norm also scales the input's channels, which are never cut."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(7)
        self.head = nn.Linear(7, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(torch.cat([x, self.conv(x)], 1))
        scores: Tensor = self.head(F.relu(x).mean((2, 3)))
        return scores


class Unfolded(nn.Module):
    """The units of a transposed convolution lie along the second dimension of its weight."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.encode = nn.Conv2d(3, 4, 3, padding=1)
        self.up = nn.ConvTranspose2d(4, wide, 2, stride=2)
        self.norm, self.out = nn.BatchNorm2d(wide), nn.Conv2d(wide, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.out(F.relu(self.norm(self.up(F.relu(self.encode(x)))))).mean((2, 3))
        return scores


class Grouped(nn.Module):
    """Depthwise and grouped convolutions: a unit has one filter of some and several of others."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 1)
        self.depth = nn.Conv2d(6, 6, 3, padding=1, groups=6)
        self.grouped, self.head = nn.Conv2d(6, 9, 1, groups=3), nn.Linear(9, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.grouped(F.relu(self.depth(self.stem(x))))
        scores: Tensor = self.head(F.relu(x).mean((2, 3)))
        return scores


def plain() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5),
        nn.PReLU(5), nn.Linear(5, 2),
    )  # fmt: skip


MODELS: dict[str, Callable[[], nn.Module]] = {
    "plain": plain,
    "residual": Residual,
    "beside the input": BesideTheInput,
    "transposed, wider": lambda: Unfolded(6),
    "transposed, square": lambda: Unfolded(4),
    "grouped": Grouped,
}
Case = tuple[nn.Module, UnitMap, Kept]


@pytest.fixture(params=MODELS)
def case(request: pytest.FixtureRequest) -> Case:
    """A sub-model in double precision that has lost the second unit of every layer."""
    torch.manual_seed(0)
    model = MODELS[request.param]().double()
    units = trace(model, torch.zeros(2, 3, 6, 6, dtype=torch.double))
    kept = units.everything()
    for layer in units.layers:
        if len(layer.units) > 1:
            kept[layer.units.start + 1] = False
    assert units.layers
    return submodel(model, units, kept), units, kept


def groups(model: nn.Module, units: UnitMap, kept: Kept) -> list[Tensor]:
    """All that each kept unit owns, as vectors, straight from the definition."""
    named = dict(model.named_parameters())
    owned: dict[int, list[Tensor]] = {unit: [] for unit in kept.nonzero().flatten().tolist()}
    for slot in units.slots:
        if slot.owned and slot.tensor in named:
            left = [i for i in slot.ids.tolist() if i == FIXED or bool(kept[i])]
            for place, unit in enumerate(left):
                if unit != FIXED:
                    owned[unit].append(named[slot.tensor].select(slot.dim, place).flatten())
    return [torch.cat(parts) for parts in owned.values()]


def by_definition(model: nn.Module, units: UnitMap, kept: Kept) -> Tensor:
    norms = [math.sqrt(len(g)) * torch.linalg.vector_norm(g) for g in groups(model, units, kept)]
    return torch.stack(norms).sum()


def test_doubles_beside_floats_have_the_same_penalty() -> None:
    torch.manual_seed(0)
    model = Residual()
    units = trace(model, torch.zeros(2, 3, 6, 6))
    model.block.double()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    mixed = GroupLasso(model, units, units.everything())
    mixed.add_gradient(0.37)
    found = {name: p.grad.double() for name, p in model.named_parameters() if p.grad is not None}
    penalty = mixed.penalty()
    model.double()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    exact = GroupLasso(model, units, units.everything())
    exact.add_gradient(0.37)
    assert penalty == pytest.approx(exact.penalty(), rel=1e-5)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-5, atol=1e-6)


def test_penalty_and_gradient_are_those_of_the_definition(case: Case) -> None:
    model, units, kept = case
    penalty = GroupLasso(model, units, kept).penalty()
    assert penalty == pytest.approx(by_definition(*case).item(), rel=1e-12)
    (0.37 * by_definition(model, units, kept)).backward()  # type: ignore[no-untyped-call]
    expected = {
        name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
        for name, p in model.named_parameters()
    }
    for factor in (0.37, torch.tensor(0.37, dtype=torch.double)):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        GroupLasso(model, units, kept).add_gradient(factor)
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            torch.testing.assert_close(parameter.grad - 1, expected[name], rtol=1e-10, atol=1e-12)


def test_a_unit_that_is_zero_has_a_gradient_of_zero() -> None:
    model = Residual()
    units = trace(model, torch.zeros(2, 3, 6, 6))
    kept = units.everything()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
            parameter.grad = torch.zeros_like(parameter)
    lasso = GroupLasso(model, units, kept)
    assert lasso.penalty() == 0
    lasso.add_gradient(5.0)
    for parameter in model.parameters():
        assert parameter.grad is not None
        assert not parameter.grad.any()


def test_what_is_never_cut_is_not_pushed() -> None:
    torch.manual_seed(0)
    model = BesideTheInput()
    units = trace(model, torch.zeros(2, 3, 6, 6))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    GroupLasso(model, units, units.everything()).add_gradient(1.0)
    pushed = model.norm.weight.grad
    assert pushed is not None
    # Three channels of the input come before the four units.
    assert pushed.ne(0).tolist() == [False] * 3 + [True] * 4
    assert model.head.weight.grad is not None
    assert not model.head.weight.grad.any()


def test_parameters_without_gradient_are_left_alone() -> None:
    model = plain()
    units = trace(model, torch.zeros(2, 3, 6, 6))
    GroupLasso(model, units, units.everything()).add_gradient(1.0)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_model_without_units_has_no_penalty() -> None:
    model = nn.Linear(3, 2)
    units = trace(model, torch.zeros(2, 3))
    lasso = GroupLasso(model, units, units.everything())
    assert lasso.penalty() == 0
    model.weight.grad = torch.zeros_like(model.weight)
    lasso.add_gradient(1.0)
    assert not model.weight.grad.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_penalty_works_in_every_precision(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = plain()
    units = trace(model, torch.zeros(2, 3, 6, 6))
    whole = GroupLasso(model, units, units.everything()).penalty()
    model.to(dtype)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    lasso = GroupLasso(model, units, units.everything())
    assert lasso.penalty() == pytest.approx(whole, rel=1e-2)
    lasso.add_gradient(0.1)
    assert all(p.grad is not None and p.grad.dtype == dtype for p in model.parameters())
