from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from adaptcl import models
from adaptcl.pruning.budget import block_sizes
from adaptcl.units import UnitMap, parameters, trace


def units_of(name: str, shape: tuple[int, ...]) -> UnitMap:
    return trace(models.build(name, shape, 10, seed=1), torch.zeros(2, *shape))


def perceptron(*widths: int) -> UnitMap:
    layers = [nn.Linear(a, b) for a, b in pairwise(widths)]
    return trace(nn.Sequential(*layers), torch.zeros(2, widths[0]))


@pytest.mark.slow
def test_a_large_model_has_whole_blocks_in_every_layer() -> None:
    units = units_of("vgg16", (3, 16, 16))
    assert block_sizes(units, 16).tolist() == [16] * len(units.layers)


def test_in_a_small_model_a_block_is_as_much_as_two_percent_of_it() -> None:
    # A unit of the first layer is 0.45 % of the model, those of the others about 1.3 %.
    assert block_sizes(units_of("small", (1, 28, 28)), 16).tolist() == [4, 1, 1, 1]


def test_a_narrow_layer_of_a_large_model_still_has_four_blocks() -> None:
    assert block_sizes(perceptron(500, 500, 6, 500, 10), 16).tolist()[1] == 1
    assert block_sizes(perceptron(500, 500, 20, 500, 10), 16).tolist()[1] == 4


@pytest.mark.slow
@settings(max_examples=30)
@given(st.lists(st.integers(1, 80), min_size=3, max_size=5), st.integers(1, 40))
def test_no_block_is_coarse(widths: list[int], multiple: int) -> None:
    units = perceptron(*widths)
    assert block_sizes(units, 1).tolist() == [1] * len(units.layers)
    whole = parameters(units, units.everything())
    for layer, block in zip(units.layers, block_sizes(units, multiple).tolist(), strict=True):
        left = units.everything()
        left[layer.units.start : layer.units.start + block] = False
        assert 1 <= block <= multiple
        assert block == 1 or 4 * block <= len(layer.units)
        assert block == 1 or parameters(units, left) >= 0.98 * whole


def test_what_is_not_trained_weighs_nothing() -> None:
    frozen = nn.Sequential(nn.Linear(4, 64), nn.Linear(64, 64), nn.Linear(64, 2))
    frozen[0].requires_grad_(False)
    frozen[1].requires_grad_(False)
    units = trace(frozen, torch.zeros(2, 4))
    assert len(block_sizes(units, 16)) == len(units.layers)


def test_a_model_without_units_has_no_blocks() -> None:
    assert block_sizes(perceptron(2, 2), 1).tolist() == block_sizes(perceptron(2, 2), 16).tolist()


def test_a_head_is_as_wide_as_its_channels() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.norm = nn.MultiheadAttention(64, 16), nn.Softmax(-1)
            self.head = nn.Linear(64, 5000)

        def forward(self, x: Tensor) -> Tensor:
            scores: Tensor = self.head(self.norm(self.inner(x, x, x)[0]))
            return scores

    units = trace(Attention(), torch.zeros(3, 2, 64))
    assert [len(layer.units) for layer in units.layers] == [16]
    assert [block_sizes(units, multiple).tolist() for multiple in (4, 8, 16)] == [[1], [2], [4]]
