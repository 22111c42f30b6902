"""Norms and means over units count those that were cut as zeros."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adaptcl.units import UnitMap, submodel, trace, zero


class RMSNormByHand(nn.Module):
    """As Llama and T5 write it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(8))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class ResponseNorm(nn.Module):
    """As ConvNeXt V2 has it, for tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.rand(8)), nn.Parameter(torch.rand(8))

    def forward(self, x: Tensor) -> Tensor:
        size = x.norm(p=2, dim=1, keepdim=True)
        return x + torch.addcmul(self.bias, self.weight, x * size / size.mean(-1, keepdim=True))


class ChannelsFirst(nn.LayerNorm):
    """A layer norm over the second dimension."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


class Spatial(nn.Module):
    """gMLP's gate: half of the units, normalised and mixed over tokens, opens the other half."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mix, self.out = nn.LayerNorm(4), nn.Linear(5, 5), nn.Linear(4, 8)

    def forward(self, x: Tensor) -> Tensor:
        gates, opened = x.chunk(2, -1)
        mixed = self.mix(self.norm(gates).transpose(1, 2)).transpose(1, 2)
        out: Tensor = self.out(opened * mixed)
        return out


class Transposed(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(x.transpose(1, 2)).transpose(1, 2)
        return out


NORMS: dict[str, Callable[[], nn.Module]] = {
    "layer norm": lambda: nn.LayerNorm(8),
    "layer norm without shift": lambda: nn.LayerNorm(8, bias=False),
    "layer norm without scale": lambda: nn.LayerNorm(8, elementwise_affine=False),
    "layer norm of channels": lambda: Transposed(ChannelsFirst(8)),
    "RMS norm": lambda: nn.RMSNorm(8),
    "RMS norm without scale": lambda: nn.RMSNorm(8, elementwise_affine=False),
    "RMS norm by hand": RMSNormByHand,
    "response norm": ResponseNorm,
    "group norm of one group": lambda: Transposed(nn.GroupNorm(1, 8)),
    "spatial gate": Spatial,
}


class Residual(nn.Module):
    """Tokens through a block around whose norm and hidden layer is an addition."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.embed, self.norm = nn.Linear(6, 8), norm
        self.hidden, self.out = nn.Linear(8, 12), nn.Linear(12, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        x = x + self.out(self.hidden(self.norm(x)).relu())
        scores: Tensor = self.head(x.mean(1))
        return scores


def traced(norm: nn.Module) -> tuple[nn.Module, Tensor, UnitMap]:
    torch.manual_seed(0)
    model, x = Residual(norm), torch.randn(3, 5, 6)
    for each in model.parameters():
        nn.init.uniform_(each, -0.5, 1)
    return model, x, trace(model, x)


@pytest.mark.parametrize("make", NORMS.values(), ids=NORMS.keys())
def test_what_is_left_has_the_mean_that_it_has_beside_zeros(make: Callable[[], nn.Module]) -> None:
    model, x, units = traced(make())
    assert next(iter(units.layers)).name == "embed"
    kept = torch.arange(units.count) % 3 > 0
    smaller = submodel(model, units, kept)
    zeroed = copy.deepcopy(model)
    zeroed.load_state_dict(zero(model.state_dict(), units, kept))
    torch.testing.assert_close(smaller(x), zeroed(x))
    assert len(smaller.state_dict()["embed.weight"]) < 8
    again = submodel(model, units, units.everything())
    torch.testing.assert_close(again(x), model(x))


def test_a_smaller_norm_trains_like_one_beside_zeros() -> None:
    model, x, units = traced(nn.LayerNorm(8))
    kept = units.everything()
    kept[:5] = False
    smaller = submodel(model, units, kept)
    zeroed = copy.deepcopy(model)
    zeroed.load_state_dict(zero(model.state_dict(), units, kept))
    for each in (smaller, zeroed):
        each(x).square().sum().backward()
    found, expected = (dict(each.named_parameters()) for each in (smaller, zeroed))
    for name in ("norm.weight", "embed.weight"):
        grad = expected[name].grad
        assert grad is not None
        torch.testing.assert_close(found[name].grad, grad[5:])
    assert type(smaller.norm).__name__ == "NarrowLayerNorm"
    assert isinstance(copy.deepcopy(smaller).norm, nn.LayerNorm)


def test_units_that_are_not_zero_when_zeroed_are_not_averaged() -> None:
    _, _, units = traced(nn.Sequential(nn.Sigmoid(), nn.LayerNorm(8)))
    assert "embed" not in [layer.name for layer in units.layers]


def test_a_mean_among_other_work_of_a_module_pins_the_units() -> None:
    class Inside(Residual):
        def forward(self, x: Tensor) -> Tensor:
            x = F.layer_norm(self.embed(x), (8,))
            scores: Tensor = self.head(self.out(self.hidden(x).relu()).mean(1))
            return scores

    units = trace(Inside(nn.Identity()), torch.randn(3, 5, 6))
    assert "embed" not in [layer.name for layer in units.layers]
