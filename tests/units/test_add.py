from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from adaptcl.units import Kept, Place, UnitMap, add_at, blocks, cut, kept_places, put_back, trace
from adaptcl.units import cut as module


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(),
        nn.Conv2d(6, 5, 3, padding=1), nn.BatchNorm2d(5), nn.ReLU(),
        nn.Flatten(), nn.Linear(5 * 16, 7), nn.ReLU(), nn.Linear(7, 3),
    )  # fmt: skip


UNITS = trace(net(), torch.zeros(2, 1, 4, 4))


@st.composite
def sub_models(draw: st.DrawFn) -> Kept:
    """Any units, or the first of each layer as fixed widths have them."""
    kept = torch.tensor(draw(st.lists(st.booleans(), min_size=18, max_size=18)))
    if draw(st.booleans()):
        for layer in UNITS.layers:
            count = int(kept[layer.units.start : layer.units.stop].sum())
            kept[layer.units.start : layer.units.stop] = torch.arange(len(layer.units)) < count
    for layer in UNITS.layers:
        kept[layer.units.start] = True
    return kept


def added(state: dict[str, Tensor], kept: Kept, weight: float) -> dict[str, Tensor]:
    totals = {n: torch.ones(shape, dtype=torch.float64) for n, shape in UNITS.shapes.items()}
    places = kept_places(UNITS, kept)
    for name, value in state.items():
        add_at(totals[name], value, places[name], weight)
    return totals


def floats(units: UnitMap = UNITS) -> dict[str, Tensor]:
    dice = torch.Generator().manual_seed(3)
    return {name: torch.randn(shape, generator=dice) for name, shape in units.shapes.items()}


@settings(deadline=None)
@given(sub_models(), st.sampled_from([1, 50, 2**17]), st.sampled_from([1.0, 3.0, 5000.0]))
def test_adding_is_the_inverse_of_cutting_for_any_sub_model_and_any_size_of_blocks(
    kept: Kept, block: int, weight: float
) -> None:
    sub = cut(floats(), UNITS, kept)
    expected = {n: torch.zeros(shape, dtype=torch.float64) for n, shape in UNITS.shapes.items()}
    put_back(sub, UNITS, kept, expected)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BLOCK", block)
        totals = added(sub, kept, weight)
    for name, total in totals.items():
        assert torch.equal(total, 1 + weight * expected[name])


def test_a_value_in_another_layout_is_added_all_the_same() -> None:
    kept = UNITS.everything()
    kept[[1, 7, 12]] = False
    plain = cut(floats(), UNITS, kept)
    other = {
        name: tensor.to(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor
        for name, tensor in plain.items()
    }
    one, two = added(plain, kept, 2.0), added(other, kept, 2.0)
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_three_cut_dimensions_are_added_too() -> None:
    total = torch.zeros(4, 5, 6, dtype=torch.float64)
    kept = [torch.tensor([0, 3]), torch.tensor([1, 2, 4]), torch.tensor([0, 2, 5])]
    places = []
    for index, size in zip(kept, total.shape, strict=True):
        spread = torch.full((size,), len(index))
        spread[index] = torch.arange(len(index))
        places.append(Place(index, None, spread))
    value = torch.rand(2, 3, 3)
    add_at(total, value, tuple(places), 1.0)
    assert torch.equal(total[kept[0][:, None, None], kept[1][:, None], kept[2]], value.double())
    assert float(total.sum()) == pytest.approx(float(value.double().sum()))


def test_blocks_cover_every_row_once() -> None:
    tensor = torch.zeros(1000, 700)
    covered = torch.cat([torch.arange(1000)[block] for block in blocks(tensor)])
    assert torch.equal(covered, torch.arange(1000))
    assert len(list(blocks(tensor))) > 1
