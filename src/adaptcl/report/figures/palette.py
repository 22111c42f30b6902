"""The look of the figures: one colour a strategy in every figure, for every kind of colour vision.

A shipped strategy has the colour at its place in the registry; the first nine are those of Okabe
and Ito and of Tol's muted scheme. Further colours are chosen automatically: each as far as possible
from those in use, for common vision and the three kinds of colour-blindness. So a new strategy
needs no entry here. Each strategy also has a marker of its own. If one strategy has several runs,
the first run has the strategy's colour and each further one a colour and dashes of its own.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from matplotlib.lines import Line2D

from adaptcl.strategies import STRATEGIES

INK = "#222222"
FAINT = "#8c8c8c"

STYLE: dict[Any, object] = {
    "font.size": 11.0,
    "axes.titlesize": 12.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10.0,
    "axes.labelsize": 11.0,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#b0b0b0",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.8,
    "xtick.color": "#b0b0b0",
    "ytick.color": "#b0b0b0",
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 10.0,
    "ytick.labelsize": 10.0,
    "legend.fontsize": 10.0,
    "legend.handlelength": 2.6,
    "legend.frameon": False,
    "lines.linewidth": 2.0,
    "lines.solid_capstyle": "round",
    "text.color": INK,
    "text.parse_math": False,
    "svg.hashsalt": "adaptcl",
    "pdf.fonttype": 42,
}
"""Settings of matplotlib for every figure. Only its latest versions have a type for their names."""

_REGISTRY_COLOURS = (
    "#7a7a7a",
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#cc79a7",
    "#d55e00",
    "#56b4e9",
    "#882255",
    "#999933",
)
_SERIES_COLOURS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a7a7a")
"""For lines that are no strategies, such as the values of one setting."""
_REPEAT_COLOURS = (
    "#4400aa",
    "#22ccaa",
    "#662244",
    "#ee66ee",
    "#004400",
    "#cccc00",
    "#eeaaee",
    "#88cc66",
    *_REGISTRY_COLOURS,
)
"""For further runs of a strategy. The first eight are far from each other and from the colours of
`fedavg`, `fedavg-s` and `adaptcl`, for every kind of colour vision."""
_SHADES = tuple(
    f"#{red:02x}{green:02x}{blue:02x}"
    for red, green, blue in itertools.product((0, 64, 128, 192, 240), repeat=3)
    if 0.3 * red + 0.59 * green + 0.11 * blue < 190
)
"""Candidates from all over the colour space, except those too pale for a line on white."""
_DASHES: tuple[tuple[float, ...], ...] = ((), (5, 2), (1.5, 1.5), (6, 2, 1.5, 2))
_MARKERS = ("o", "s", "^", "v", "D", "P", "X", "<", "*", ">", "p", "h", "d", "H", "8")
"""A strategy has the marker at its place in the registry, so that grey copies can be read too."""
_ALIKE = 80.0
"""Colours nearer to each other than this, in red, green and blue up to 255, look alike."""

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


@dataclass(frozen=True)
class Look:
    """How one run is drawn in every figure."""

    colour: str
    dashes: tuple[float, ...] = ()
    marker: str = "o"

    def dash(self, line: Line2D) -> None:
        if self.dashes:
            line.set_dashes(self.dashes)


def looks(strategies: Sequence[str]) -> list[Look]:
    """One look for each run, given by its strategy; no two strategies share a colour."""
    colours = {name: _shipped_colour(name) for name in STRATEGIES if name in strategies}
    for name in sorted({*strategies} - colours.keys()):
        shipped = [_shipped_colour(each) for each in STRATEGIES]
        colours[name] = _far_from([*shipped, *colours.values()])
    markers = _markers(strategies)
    taken = list(colours.values())
    # A repeated run may be nearer to another repeated run than to any strategy's colour.
    repeats = [c for c in _REPEAT_COLOURS if _rgb_distance(c, list(colours.values())) >= _ALIKE]
    drawn = Counter[str]()
    chosen: list[Look] = []
    for strategy in strategies:
        time = drawn[strategy]
        drawn[strategy] += 1
        unused = (colour for colour in repeats if colour not in taken)
        colour = colours[strategy] if not time else next(unused, None) or _far_from(taken)
        taken.append(colour)
        order = [
            Look(colour, _DASHES[(time + step) % len(_DASHES)], markers[strategy])
            for step in range(len(_DASHES))
        ]
        # With more runs than colours, colours come again with other dashes.
        chosen.append(next((look for look in order if look not in chosen), order[0]))
    return chosen


def _markers(strategies: Sequence[str]) -> dict[str, str]:
    """A marker for each strategy; custom ones come after those that ship."""
    names = [*STRATEGIES, *sorted({*strategies} - STRATEGIES.keys())]
    return {name: _MARKERS[place % len(_MARKERS)] for place, name in enumerate(names)}


def series_look(place: int) -> Look:
    """The look of a line in a series that is not of strategies."""
    colour = _SERIES_COLOURS[place % len(_SERIES_COLOURS)]
    return Look(colour, _DASHES[place % len(_DASHES)])


@cache
def seen(colour: str, vision: str) -> tuple[float, ...]:
    """A colour's place in CIELAB, in which equal steps look equal, for a kind of vision."""
    share = np.array([int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)])
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    xyz = _XYZ @ np.clip(COLOUR_VISION[vision] @ linear, 0, 1)
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return float(116 * y - 16), float(500 * (x - y)), float(200 * (y - z))


def _shipped_colour(strategy: str) -> str:
    return _colour_sequence(len(STRATEGIES))[list(STRATEGIES).index(strategy)]


@cache
def _colour_sequence(length: int) -> tuple[str, ...]:
    colours = list(_REGISTRY_COLOURS)
    while len(colours) < length:
        colours.append(_far_from(colours))
    return tuple(colours)


def _far_from(taken: Sequence[str]) -> str:
    """The shade whose least difference from the taken colours, for any vision, is largest."""

    def least_difference(shade: str) -> float:
        return min(
            math.dist(seen(shade, vision), seen(other, vision))
            for other in taken
            for vision in COLOUR_VISION
        )

    return max(_SHADES, key=least_difference)


def _rgb_distance(colour: str, others: Sequence[str]) -> float:
    """The distance to the nearest of the other colours."""
    rgb = bytes.fromhex(colour[1:])
    return min((math.dist(rgb, bytes.fromhex(other[1:])) for other in others), default=math.inf)
