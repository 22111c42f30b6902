from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from adaptcl.units import cut, flops, parameters, retention, size_bytes, trace


@pytest.mark.parametrize("animal", ["MLP with batch norm"], indirect=True)
def test_sizes_of_a_small_net_worked_out_by_hand(net: nn.Module, images: Tensor) -> None:
    units = trace(net, images)
    kept = units.everything()
    # Linear 192-7, linear 7-9, batch norm and PReLU of 9, linear 9-5.
    whole = (192 * 7 + 7) + (7 * 9 + 9) + 2 * 9 + 9 + (9 * 5 + 5)
    assert parameters(units, kept) == whole
    assert size_bytes(units, kept) == 4 * (whole + 2 * 9) + 8
    assert flops(units, kept) == 2 * (192 * 7 + 7 * 9 + 9 * 5)
    kept[:3] = False
    cut = (192 * 4 + 4) + (4 * 9 + 9) + 2 * 9 + 9 + (9 * 5 + 5)
    assert parameters(units, kept) == cut
    assert retention(units, kept) == cut / whole
    assert size_bytes(units, kept) == 4 * (cut + 2 * 9) + 8
    assert flops(units, kept) == 2 * (192 * 4 + 4 * 9 + 9 * 5)


@pytest.mark.parametrize("animal", ["VGG-like"], indirect=True)
def test_a_convolution_works_once_for_every_output_position(net: nn.Module, images: Tensor) -> None:
    units = trace(net, images)
    by_hand = 64 * 27 * 6 + 64 * 54 * 8 + 4 * 72 * 10 + 10 * 5
    assert flops(units, units.everything()) == 2 * by_hand


@pytest.mark.parametrize("animal", ["grouped convolution of the input"], indirect=True)
def test_a_model_without_units_has_a_size_all_the_same(net: nn.Module, images: Tensor) -> None:
    units = trace(net, images)
    nothing = torch.ones(0, dtype=torch.bool)
    assert parameters(units, nothing) == 54 + 12 + 384 * 5 + 5
    assert retention(units, nothing) == 1.0


@pytest.mark.parametrize("animal", ["tied weights"], indirect=True)
def test_a_tied_weight_is_one_parameter_and_travels_once(net: nn.Module, images: Tensor) -> None:
    units = trace(net, images)
    kept = units.everything()
    assert parameters(units, kept) == sum(p.numel() for p in net.parameters())
    assert size_bytes(units, kept) == 4 * parameters(units, kept)


@pytest.mark.parametrize("animal", ["MLP with batch norm"], indirect=True)
def test_the_retention_is_of_what_is_trained(net: nn.Module, images: Tensor) -> None:
    net.get_submodule("3").requires_grad_(False)
    units = trace(net, images)
    kept = units.everything()
    frozen = sum(each.numel() for each in net.parameters() if not each.requires_grad)
    assert 0 < frozen < sum(each.numel() for each in net.parameters())
    whole = sum(each.numel() for each in net.parameters() if each.requires_grad)
    assert parameters(units, kept) == whole
    kept[0] = False
    held = cut(net.state_dict(), units, kept)
    trained = [name for name, each in net.named_parameters() if each.requires_grad]
    assert retention(units, kept) == sum(held[name].numel() for name in trained) / whole
    net.requires_grad_(False)
    assert parameters(trace(net, images), kept) > 0


class Mixed(nn.Module):
    """Tensors of five types, a tied one among them."""

    def __init__(self, weights: torch.dtype) -> None:
        super().__init__()
        self.stem, self.a = nn.Linear(3, 6).to(weights), nn.Linear(6, 4).to(weights)
        self.b, self.c = nn.Linear(4, 4).to(weights), nn.Linear(4, 4).to(weights)
        self.c.weight = self.b.weight
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("mask", torch.ones(5, dtype=torch.bool))
        self.register_buffer("order", torch.arange(5, dtype=torch.int32))

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(torch.relu(self.stem(x.to(self.a.weight.dtype))))
        scores: Tensor = self.norm(self.c(torch.relu(self.b(x))).float())
        return scores


def test_every_tensor_has_the_size_of_its_type() -> None:
    net = Mixed(torch.bfloat16)
    units = trace(net, torch.zeros(2, 3))
    assert units.count > 0
    kept = units.everything()
    kept[1] = False
    for each in (units.everything(), kept):
        tensors = cut(net.state_dict(), units, each)
        assert size_bytes(units, each) == sum(
            tensor.nbytes for name, tensor in tensors.items() if name != "c.weight"
        )
