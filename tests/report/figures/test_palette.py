"""Colours of runs, as people with every kind of colour vision see them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest

from adaptcl.report.figures import palette
from adaptcl.report.figures.palette import looks, looks_by_condition
from adaptcl.strategies import STRATEGIES

_XYZ = np.array([[0.4339, 0.3762, 0.1899], [0.2127, 0.7152, 0.0722], [0.0178, 0.1094, 0.8728]])
"""From linear sRGB, relative to white."""
COLOUR_VISION = {
    "common": np.eye(3),
    "without red": np.array(
        [[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.0520]]
    ),
    "without green": np.array(
        [[0.3673, 0.8606, -0.2280], [0.2801, 0.6725, 0.0474], [-0.0118, 0.0429, 0.9689]]
    ),
    "without blue": np.array(
        [[1.2555, -0.0767, -0.1788], [-0.0784, 0.9308, 0.1476], [0.0047, 0.6914, 0.3039]]
    ),
}
"""How people see linear sRGB, after Machado, Oliveira and Fernandes (2009)."""


def seen(colour: str, vision: str) -> tuple[float, ...]:
    """A colour's place in CIELAB, in which equal steps look equal, for a kind of vision."""
    share = np.array([int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)])
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    xyz = _XYZ @ np.clip(COLOUR_VISION[vision] @ linear, 0, 1)
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return float(116 * y - 16), float(500 * (x - y)), float(200 * (y - z))


def colours(strategies: Sequence[str]) -> list[str]:
    return [look.colour for look in looks(strategies)]


def least_difference(found: Sequence[str], vision: str) -> float:
    places = [seen(colour, vision) for colour in found]
    return min(math.dist(one, other) for one, other in itertools.combinations(places, 2))


def test_the_strategies_of_the_paper_keep_their_colours() -> None:
    known = {"fedavg": "#7a7a7a", "fedavg-s": "#0072b2", "fedasync-s": "#e69f00"}
    known |= {"ssp-s": "#009e73", "dc-asgd-a-s": "#cc79a7", "adaptcl": "#d55e00"}
    known |= {"heterofl": "#56b4e9", "fedrolex": "#882255", "fedbuff": "#999933"}
    for name, colour in known.items():
        assert colours([name]) == [colour]


def test_a_new_strategy_gets_a_colour_without_an_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    more = {**STRATEGIES, **dict.fromkeys(("one", "two", "three"), STRATEGIES["fedavg"])}
    monkeypatch.setattr(palette, "STRATEGIES", more)
    found = colours(list(more))
    assert found[: len(STRATEGIES)] == colours(list(STRATEGIES))
    assert colours(["two"]) == [found[-2]]
    shipped = colours(list(STRATEGIES))
    for vision in COLOUR_VISION:
        # A new colour is no harder to tell from the others than the colours before it.
        assert least_difference(found, vision) == least_difference(shipped, vision)


def test_custom_strategies_have_colours_that_no_shipped_strategy_has() -> None:
    found = colours([*STRATEGIES, "mine:A", "yours:B"])
    assert len(set(found)) == len(found)
    alone = colours(["mine:A", "yours:B"])
    assert not {*alone} & {*colours(list(STRATEGIES))}


def test_a_strategy_keeps_its_colour_if_it_occurs_once() -> None:
    strategies = ("adaptcl", "fedavg", "adaptcl", "heterofl", "adaptcl")
    drawn = looks(strategies)
    for place in (0, 1, 3):
        assert looks([strategies[place]]) == [drawn[place]]


def test_ten_runs_of_one_strategy_have_colours_that_everybody_can_tell_apart() -> None:
    for strategy in ("fedavg", "fedavg-s", "adaptcl"):
        for vision in COLOUR_VISION:
            # A difference of 2 can just be seen where colours touch; thin lines take far more.
            least = 35 if vision == "common" else 18
            assert least_difference(colours([strategy] * 10), vision) > least


def test_a_repeated_strategy_has_no_colour_like_another_strategys() -> None:
    others = ("fedavg", "fedavg-s", "fedasync-s", "ssp-s", "dc-asgd-a-s", "heterofl", "fedrolex")
    places = [seen(colour, "common") for colour in colours([*others, *["adaptcl"] * 4])]
    repeated, strategies = places[len(others) + 1 :], places[: len(others)]
    for one, other in itertools.product(repeated, strategies):
        assert math.dist(one, other) > 20


def test_under_several_conditions_a_method_keeps_its_colour_and_dashes_differ() -> None:
    methods = ["fedavg", "adaptcl", "adaptcl"]
    first, second = (looks_by_condition([methods, methods])[at : at + 3] for at in (0, 3))
    assert first[:2] == looks(methods[:2])
    assert [look.colour for look in first] == [look.colour for look in second]
    assert len({look.dashes for look in first}) == len({look.dashes for look in second}) == 1
    assert first[0].dashes != second[0].dashes
    # With more conditions than dashes all runs still differ.
    assert looks_by_condition([["fedavg"]] * 5) == looks(["fedavg"] * 5)
    assert looks_by_condition([methods]) == looks(methods)


def test_no_two_of_very_many_runs_look_the_same() -> None:
    assert len(set(looks(["fedavg", "adaptcl"] * 20))) == 40
    custom = [f"custom:{place}" for place in range(6)]
    found = colours([*["fedavg", "ssp-s", "adaptcl"] * 3, *custom])
    assert len(set(found)) == len(found)
