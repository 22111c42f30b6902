from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from adaptcl.errors import UpdateError
from adaptcl.pruning import fit, prune
from adaptcl.pruning.budget import block_sizes
from adaptcl.training import Pruning
from adaptcl.training.wire import check_cut, fewest_parameters
from adaptcl.units import FIXED, Kept, Layer, Slot, UnitMap, parameters, retention, trace


class Repeated(nn.Module):
    """The same square layer over and over: a unit of it is a row and a column at once."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.again, self.head = nn.Linear(4, 20), nn.Linear(20, 20), nn.Linear(20, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        for _ in range(3):
            x = torch.relu(self.again(x))
        scores: Tensor = self.head(x)
        return scores


def deep() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 48, 3), nn.ReLU(),
        nn.Conv2d(48, 32, 3), nn.BatchNorm2d(32), nn.Flatten(), nn.Linear(32 * 4, 10),
    )  # fmt: skip


def wide() -> nn.Module:
    layers = [nn.Linear(64, 64) for _ in range(8)]
    return nn.Sequential(nn.Linear(4, 64), *layers, nn.Linear(64, 3))


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "repeated": (Repeated, (2, 4)),
    "deep": (deep, (2, 1, 8, 8)),
    "wide": (wide, (2, 4)),
}


UNEQUAL = UnitMap(
    slots=(
        Slot("first", 0, torch.arange(12), owned=True),
        Slot("second", 1, torch.tensor([FIXED, *range(6, 12)]), owned=False),
    ),
    layers=(Layer("first", range(12)),),
    shapes={"first": (12, 4), "second": (500, 7)},
    parameters=frozenset({"first", "second"}),
    bn_scales=frozenset(),
    work=(),
)
"""One layer, of whose units only half are read by the next."""

ALL_NETS = pytest.mark.parametrize("net", ["unequal", *NETS])


@cache
def units_of(net: str) -> UnitMap:
    if net == "unequal":
        return UNEQUAL
    build, shape = NETS[net]
    return trace(build(), torch.zeros(shape))


def test_one_of_the_nets_has_blocks_of_several_units() -> None:
    assert min(block_sizes(units_of("wide"), 16).tolist()) == 4


def random_part(units: UnitMap, dice: torch.Generator) -> Kept:
    kept = torch.rand(units.count, generator=dice) < 0.8
    for layer in units.layers:
        kept[layer.units.start] = True
    return kept


rates = st.floats(0.001, 0.999)
anything = given(
    seed=st.integers(0, 10**6),
    rate=rates,
    least=st.sampled_from([0.0, 0.1, 0.3, 0.8]),
    multiple=st.sampled_from([1, 2, 8, 16]),
    levels=st.sampled_from([1, 3, 10**6]),
)


@ALL_NETS
@pytest.mark.parametrize("told", [True, False])
@settings(deadline=None)
@anything
def test_whatever_an_honest_worker_cuts_is_accepted(
    net: str, told: bool, seed: int, rate: float, least: float, multiple: int, levels: int
) -> None:
    units = units_of(net)
    dice = torch.Generator().manual_seed(seed)
    before = random_part(units, dice)
    # With few levels most units are equally important.
    importance = torch.randint(levels, (units.count,), generator=dice).float() / levels
    after = prune(units, before, importance, rate, least, multiple)
    pruning = Pruning(rate, "any", importance if told else None, least, multiple)
    check_cut("worker 1", before, after, pruning, units)


@ALL_NETS
@settings(deadline=None)
@anything
def test_what_keeps_fewer_parameters_than_any_order_leaves_is_refused(
    net: str, seed: int, rate: float, least: float, multiple: int, levels: int
) -> None:
    units = units_of(net)
    dice = torch.Generator().manual_seed(seed)
    before = random_part(units, dice)
    pruning = Pruning(rate, "any", None, least, multiple)
    fewest = fewest_parameters(units, before, pruning)
    after = fit(units, before, torch.rand(units.count, generator=dice), fewest - 1)
    if parameters(units, after) < fewest:
        with pytest.raises(UpdateError, match=r"worker 1 was told to prune .* and cut away far"):
            check_cut("worker 1", before, after, pruning, units)


@pytest.mark.parametrize(("rate", "least"), [(0.05, 0.1), (0.5, 0.1), (0.5, 0.5), (0.9, 0.0)])
def test_what_may_be_left_is_close_to_what_was_asked(rate: float, least: float) -> None:
    units = units_of("deep")
    everything = units.everything()
    fewest = fewest_parameters(units, everything, Pruning(rate, "l1", None, least, 16))
    # A block has at most 2 % of the model, except that a single unit of this one has 2.1 %.
    assert 1 - rate - 0.022 <= fewest / parameters(units, everything) <= 1 - rate


def test_where_the_least_retention_ends_the_pruning_no_block_may_go_below_it() -> None:
    units = units_of("deep")
    everything = units.everything()
    at_least = Pruning(0.5, "l1", None, 0.499, 16)
    after = fit(units, everything, torch.rand(units.count), 0.495 * parameters(units, everything))
    assert retention(units, after) > 0.48
    check_cut("worker 1", everything, after, Pruning(0.5, "l1", None, 0.0, 16), units)
    with pytest.raises(UpdateError, match=r"told to prune 50\.0%"):
        check_cut("worker 1", everything, after, at_least, units)


def test_a_unit_that_is_not_there_makes_no_room_for_cutting_more() -> None:
    kept = UNEQUAL.everything()
    kept[6:] = False  # those that are read: 504 parameters each where they are kept, not 4
    assert parameters(UNEQUAL, kept) == 6 * 4 + 500
    fewest = fewest_parameters(UNEQUAL, kept, Pruning(0.25, "l1"))
    assert fewest == 0.75 * (6 * 4 + 500) - 4


def test_a_rounding_error_in_the_least_retention_does_not_refuse_what_keeps_it() -> None:
    units = UnitMap(
        slots=(Slot("only", 0, torch.arange(100), owned=True),),
        layers=(Layer("only", range(100)),),
        shapes={"only": (100,)},
        parameters=frozenset({"only"}),
        bn_scales=frozenset(),
        work=(),
    )
    told = Pruning(0.925, "l1", None, 0.07)
    after = prune(units, units.everything(), torch.arange(100.0), told.rate, told.min_retention)
    assert int(after.sum()) == 7 < fewest_parameters(units, units.everything(), told)
    check_cut("worker 1", units.everything(), after, told, units)


def test_where_the_server_sent_the_order_one_other_unit_is_refused() -> None:
    units = units_of("deep")
    importance = torch.arange(float(units.count))
    pruning = Pruning(0.2, "index", importance)
    after = prune(units, units.everything(), importance, 0.2)
    swapped = after.clone()
    layer = units.layers[0].units
    swapped[layer.start], swapped[layer.stop - 1] = True, False
    assert int(swapped.sum()) == int(after.sum())
    check_cut("worker 1", units.everything(), after, pruning, units)
    with pytest.raises(UpdateError, match=r"worker 1 kept \d+ units, which are not the"):
        check_cut("worker 1", units.everything(), swapped, pruning, units)


def test_where_the_worker_has_its_own_order_it_may_cut_less_than_asked() -> None:
    units = units_of("deep")
    check_cut("worker 1", units.everything(), units.everything(), Pruning(0.3, "l1"), units)


def test_a_model_of_which_nothing_can_be_cut_is_left_as_it_is() -> None:
    units = trace(nn.Linear(2, 2), torch.zeros(1, 2))
    check_cut("worker 1", units.everything(), units.everything(), Pruning(0.3, "l1"), units)
