from __future__ import annotations

import importlib

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from adaptcl.errors import UpdateError
from adaptcl.units import (
    Kept,
    State,
    UnitMap,
    add_at,
    check_kept,
    cut,
    flops,
    kept_places,
    parameters,
    put_back,
    recut,
    size_bytes,
    submodel,
    trace,
    zero,
)
from adaptcl.units.cut import CutOnDemand, Place, blank, row_blocks

SIDE = 4
Step = tuple[str, int]


class Drawn(nn.Module):
    """A net made of drawn steps: each a way of getting from channels to channels."""

    def __init__(self, steps: list[Step], flat: bool) -> None:
        super().__init__()
        self.kinds: list[str] = []
        self.parts = nn.ModuleList()
        self.flat = flat
        width = 3
        for kind, drawn in [("conv", 4), *steps]:
            if kind in ("grouped", "chunk", "shuffle") and width % 2 == 1:
                continue
            part, width = _part(kind, width, drawn)
            self.kinds.append(kind)
            self.parts.append(part)
        self.head = nn.Linear(width * (SIDE * SIDE if flat else 1), 3)

    def forward(self, image: Tensor) -> Tensor:
        x = image
        for kind, part in zip(self.kinds, self.parts, strict=True):
            x = _step(kind, part, x, image)
        x = x.flatten(1) if self.flat else x.mean((2, 3))
        scores: Tensor = self.head(x)
        return scores


def _part(kind: str, width: int, drawn: int) -> tuple[nn.Module, int]:
    match kind:
        case "conv":
            return nn.Conv2d(width, drawn, 3, padding=1), drawn
        case "norm":
            return nn.BatchNorm2d(width), width
        case "residual":
            return nn.Conv2d(width, width, 1), width
        case "cat":
            return nn.Conv2d(width, drawn, 1), width + drawn
        case "image":
            return nn.Identity(), width + 3
        case "depthwise":
            return nn.Conv2d(width, width, 3, padding=1, groups=width), width
        case "grouped":
            return nn.Conv2d(width, 2 * width, 1, groups=2), 2 * width
        case "gate":
            return nn.Conv2d(width, width, 1), width
        case "chunk":
            return nn.Identity(), width // 2
        case _:
            return nn.Identity(), width


def _step(kind: str, part: nn.Module, x: Tensor, image: Tensor) -> Tensor:
    n, c, h, w = x.shape
    match kind:
        case "residual":
            return F.relu(x + part(x))
        case "cat":
            return torch.cat([x, F.gelu(part(x))], 1)
        case "image":
            return torch.cat([image, x], 1)
        case "gate":
            return x * torch.sigmoid(part(x.mean((2, 3), keepdim=True)))
        case "chunk":
            one, other = x.chunk(2, 1)
            return one * other.sigmoid()
        case "shuffle":
            return x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)
        case "sigmoid":
            return x.sigmoid()
        case _:
            return F.relu(part(x))


KINDS = "conv norm residual cat image depthwise grouped gate chunk shuffle sigmoid"


@st.composite
def cut_models(draw: st.DrawFn) -> tuple[nn.Module, UnitMap, Kept]:
    step = st.tuples(st.sampled_from(KINDS.split()), st.integers(2, 6))
    steps = draw(st.lists(step, max_size=6))
    seed = draw(st.integers(0, 999))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Drawn(steps, flat=draw(st.booleans())).eval()
        with torch.no_grad():
            for name, tensor in model.state_dict().items():
                if tensor.is_floating_point():
                    tensor.uniform_(0.5, 1.5) if "var" in name else tensor.normal_(0, 0.7)
    units = trace(model, images())
    kept = torch.tensor(
        draw(st.lists(st.booleans(), min_size=units.count, max_size=units.count)),
        dtype=torch.bool,
    )
    for layer in units.layers:
        kept[draw(st.sampled_from(layer.units))] = True
    return model, units, kept


def images() -> Tensor:
    return torch.randn(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))


def example_model() -> tuple[State, UnitMap, Kept]:
    model = Drawn([("norm", 0), ("conv", 6)], flat=False)
    units = trace(model, images())
    return model.state_dict(), units, torch.tensor([1, 0, 1, 1] + [0, 1] * 3, dtype=torch.bool)


@pytest.mark.slow
@settings(max_examples=40)
@given(cut_models())
def test_any_cut_model_equals_the_zeroed_one_has_its_size_and_can_be_put_back(
    drawn: tuple[nn.Module, UnitMap, Kept],
) -> None:
    model, units, kept = drawn
    smaller = submodel(model, units, kept)
    check_equals_zeroing(model, units, kept, smaller)
    check_sizes(units, kept, smaller)
    check_putting_back(model.state_dict(), units, kept)


@torch.no_grad()
def check_equals_zeroing(model: nn.Module, units: UnitMap, kept: Kept, smaller: nn.Module) -> None:
    zeroed = submodel(model, units, units.everything(), zero(model.state_dict(), units, kept))
    expected = zeroed(images())
    scale = float(expected.abs().max())
    torch.testing.assert_close(smaller(images()), expected, rtol=0, atol=1e-4 * scale + 1e-6)


def check_sizes(units: UnitMap, kept: Kept, smaller: nn.Module) -> None:
    assert parameters(units, kept) == sum(p.numel() for p in smaller.parameters())
    assert size_bytes(units, kept) == sum(each.nbytes for each in smaller.state_dict().values())
    again = trace(smaller, images())
    assert flops(units, kept) == flops(again, again.everything())


def check_putting_back(state: State, units: UnitMap, kept: Kept) -> None:
    """It is the inverse of cutting and touches nothing else."""
    marked = {name: torch.full_like(tensor, 77) for name, tensor in state.items()}
    sub = cut(state, units, kept)
    put_back(sub, units, kept, into=marked)
    again = cut(marked, units, kept)
    for name, tensor in state.items():
        assert torch.equal(again[name], sub[name])
        written = marked[name] != 77
        assert int(written.sum()) == sub[name].numel()
        assert torch.equal(marked[name][written], tensor[written])


def test_cut_tensors_are_contiguous_copies() -> None:
    state, units, kept = example_model()
    sub = cut(state, units, kept)
    assert sub["parts.2.weight"].shape == (3, 3, 3, 3)
    for name, tensor in cut(state, units, units.everything()).items():
        assert tensor.is_contiguous()
        assert torch.equal(tensor, state[name])
        assert tensor.data_ptr() != state[name].data_ptr()


def test_places_are_none_where_everything_is_kept() -> None:
    _, units, kept = example_model()
    places = kept_places(units, kept)
    assert list(places) == list(units.shapes)
    rows, columns, *kernel = places["parts.2.weight"]
    assert rows is not None
    assert rows.index.tolist() == [1, 3, 5]
    assert columns is not None
    assert columns.index.tolist() == [0, 2, 3]
    assert kernel == [None, None]
    assert places["parts.1.num_batches_tracked"] == ()
    assert places["head.bias"] == (None,)
    whole = kept_places(units, units.everything())
    assert all(place is None for tensor in whole.values() for place in tensor)


def test_zeroing_leaves_the_columns_that_read_a_unit() -> None:
    state, units, kept = example_model()
    zeroed = zero(state, units, kept)
    assert not zeroed["parts.0.weight"][1].any()
    assert not zeroed["parts.1.running_var"][1].any()
    assert torch.equal(zeroed["parts.2.weight"][[1, 3, 5]], state["parts.2.weight"][[1, 3, 5]])
    assert state["parts.0.weight"][1].any()


def test_kept_units_must_be_a_boolean_for_each_unit() -> None:
    _, units, _ = example_model()
    for kept in (torch.ones(10), torch.ones(9).bool(), torch.ones(1, 10).bool()):
        with pytest.raises(UpdateError, match="must be 10 booleans"):
            check_kept(units, kept)


def test_a_layer_without_unit_is_named() -> None:
    state, units, kept = example_model()
    kept[:4] = False
    with pytest.raises(UpdateError, match=r"'parts\.0' is left without"):
        cut(state, units, kept)


def test_a_tensor_of_another_shape_cannot_be_put_back() -> None:
    state, units, kept = example_model()
    sub = cut(state, units, kept)
    sub["parts.2.weight"] = sub["parts.2.weight"][:2]
    with pytest.raises(UpdateError, match=r"'parts\.2\.weight' has shape \(2, 3, 3, 3\)"):
        put_back(sub, units, kept, into=state)


def test_a_tensor_the_model_does_not_have_cannot_be_put_back() -> None:
    state, units, kept = example_model()
    with pytest.raises(UpdateError, match="no tensor 'stranger'"):
        put_back({"stranger": torch.ones(1)}, units, kept, into=state)


def test_a_tensor_that_there_is_no_place_for_cannot_be_put_back() -> None:
    state, units, kept = example_model()
    sub = cut(state, units, kept)
    del state["head.bias"]
    with pytest.raises(UpdateError, match=r"no tensor 'head\.bias'"):
        put_back(sub, units, kept, into=state)


def test_cutting_a_sub_model_to_all_of_its_units_is_a_copy() -> None:
    state, units, kept = example_model()
    sub = cut(state, units, kept)
    for name, tensor in recut(sub, units, kept, kept).items():
        assert torch.equal(tensor, sub[name])
        assert tensor.data_ptr() != sub[name].data_ptr()


def test_a_sub_model_cannot_be_cut_to_units_that_it_lacks_or_to_none() -> None:
    state, units, kept = example_model()
    sub = cut(state, units, kept)
    with pytest.raises(UpdateError, match="units that it has"):
        recut(sub, units, kept, units.everything())
    with pytest.raises(UpdateError, match="without any unit"):
        recut(sub, units, kept, kept & False)


def test_tensors_cut_on_demand_are_those_that_a_cut_gives() -> None:
    state, units, kept = example_model()
    lazy, eager = CutOnDemand(state, units, kept), cut(state, units, kept)
    assert list(lazy) == list(eager)
    assert len(lazy) == len(eager)
    assert all(torch.equal(tensor, eager[name]) for name, tensor in lazy.items())
    assert lazy["head.weight"] is not lazy["head.weight"]


def test_a_blank_sub_model_has_the_shapes_and_types_of_a_cut_one_and_holds_zeros() -> None:
    state, units, kept = example_model()
    nothing, cut_off = blank(units, kept, torch.device("cpu")), cut(state, units, kept)
    assert list(nothing) == list(cut_off)
    for name, tensor in nothing.items():
        assert (tensor.shape, tensor.dtype) == (cut_off[name].shape, cut_off[name].dtype)
        assert not bool(tensor.any())


class Additions:
    """The sums of three layers, for tests of `add_at`."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(),
            nn.Conv2d(6, 5, 3, padding=1), nn.BatchNorm2d(5), nn.ReLU(),
            nn.Flatten(), nn.Linear(5 * 16, 7), nn.ReLU(), nn.Linear(7, 3),
        )  # fmt: skip
        self.units = trace(net, torch.zeros(2, 1, 4, 4))
        generator = torch.Generator().manual_seed(3)
        shapes = self.units.shapes
        self.state = {n: torch.randn(shape, generator=generator) for n, shape in shapes.items()}

    def sums(self, fill: float) -> State:
        shapes = self.units.shapes
        return {n: torch.full(shape, fill, dtype=torch.float64) for n, shape in shapes.items()}

    def added(self, sub: State, kept: Kept, weight: float) -> State:
        totals, places = self.sums(1), kept_places(self.units, kept)
        for name, value in sub.items():
            add_at(totals[name], value, places[name], weight)
        return totals


ADDITIONS = Additions()


@st.composite
def sub_models(draw: st.DrawFn) -> Kept:
    """Any units, or the first of each layer as fixed widths have them."""
    kept = torch.tensor(draw(st.lists(st.booleans(), min_size=18, max_size=18)))
    first = draw(st.booleans())
    for layer in ADDITIONS.units.layers:
        here = slice(layer.units.start, layer.units.stop)
        if first:
            kept[here] = torch.arange(len(layer.units)) < int(kept[here].sum())
        kept[layer.units.start] = True
    return kept


@given(sub_models(), st.sampled_from([1, 50, 2**17]), st.sampled_from([1.0, 3.0, 5000.0]))
def test_adding_is_the_inverse_of_cutting_for_any_sub_model_and_any_size_of_blocks(
    kept: Kept, block: int, weight: float
) -> None:
    sub = cut(ADDITIONS.state, ADDITIONS.units, kept)
    expected = ADDITIONS.sums(0)
    put_back(sub, ADDITIONS.units, kept, expected)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importlib.import_module("adaptcl.units.cut"), "_BLOCK", block)
        totals = ADDITIONS.added(sub, kept, weight)
    for name, total in totals.items():
        assert torch.equal(total, 1 + weight * expected[name])


def test_a_value_in_another_memory_layout_is_added_all_the_same() -> None:
    kept = ADDITIONS.units.everything()
    kept[[1, 7, 12]] = False
    plain = cut(ADDITIONS.state, ADDITIONS.units, kept)
    other = {
        name: tensor.to(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor
        for name, tensor in plain.items()
    }
    one, two = ADDITIONS.added(plain, kept, 2.0), ADDITIONS.added(other, kept, 2.0)
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


def test_blocks_of_rows_cover_every_row_once() -> None:
    tensor = torch.zeros(1000, 700)
    covered = torch.cat([torch.arange(1000)[block] for block in row_blocks(tensor)])
    assert torch.equal(covered, torch.arange(1000))
    assert len(list(row_blocks(tensor))) > 1
