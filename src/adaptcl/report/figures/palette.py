"""The look of the figures: each strategy has one colour, for every kind of colour vision.

A strategy has the colour and the marker at its place in the registry; custom ones come after those
that ship. If one strategy has several runs, the first has the strategy's colour and each further
one another colour and other dashes. Under several conditions, dashes tell these apart.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

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

_COLOURS = (
    *("#7a7a7a", "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#882255"),
    *("#999933", "#000080", "#8000f0", "#400000", "#00f080", "#800000", "#8000c0", "#400040"),
    *("#004080", "#c040f0", "#c00040", "#80c080"),
)
"""The first nine are those of Okabe and Ito and of Tol's muted scheme. Each further one is a shade
farthest from those before it, for common vision and the three kinds of colour-blindness."""
_REPEAT_COLOURS = (
    *("#4400aa", "#22ccaa", "#662244", "#ee66ee", "#004400", "#cccc00", "#eeaaee", "#88cc66"),
    *_COLOURS,
)
"""For further runs of a strategy. The first eight are far from each other and from the colours of
`fedavg`, `fedavg-s` and `adaptcl`, for every kind of colour vision."""
DASHES: tuple[tuple[float, ...], ...] = ((), (5, 2), (1.5, 1.5), (6, 2, 1.5, 2))
_MARKERS = ("o", "s", "^", "v", "D", "P", "X", "<", "*", ">", "p", "h", "d", "H", "8")
"""They set strategies apart in grey copies too."""
_ALIKE = 80.0
"""Colours nearer to each other than this, in red, green and blue up to 255, look alike."""


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
    """One look for each run, given by its strategy."""
    names = [*STRATEGIES, *sorted({*strategies} - STRATEGIES.keys())]
    places = {name: place for place, name in enumerate(names)}
    colours = {name: _COLOURS[places[name] % len(_COLOURS)] for name in strategies}
    repeats = [c for c in _REPEAT_COLOURS if _distance(c, list(colours.values())) >= _ALIKE]
    drawn = Counter[str]()
    chosen: list[Look] = []
    for strategy in strategies:
        time = drawn[strategy]
        drawn[strategy] += 1
        repeated = drawn.total() - len(drawn)
        colour = repeats[(repeated - 1) % len(repeats)] if time else colours[strategy]
        marker = _MARKERS[places[strategy] % len(_MARKERS)]
        order = [Look(colour, (DASHES * 2)[time % 4 + step], marker) for step in range(4)]
        # With more runs than colours, colours come again with other dashes.
        chosen.append(next((look for look in order if look not in chosen), order[0]))
    return chosen


def looks_by_condition(parts: Sequence[Sequence[str]]) -> list[Look]:
    """One look for each run of each condition: the same colours, with other dashes.

    If that would not tell all runs apart, each has a colour of its own.
    """
    found = [
        replace(look, dashes=DASHES[place % len(DASHES)])
        for place, strategies in enumerate(parts)
        for look in looks(strategies)
    ]
    if len(parts) > 1 and len(set(found)) == len(found):
        return found
    return looks([strategy for strategies in parts for strategy in strategies])


def _distance(colour: str, others: Sequence[str]) -> float:
    """The distance to the nearest of the other colours."""
    rgb = bytes.fromhex(colour[1:])
    return min((math.dist(rgb, bytes.fromhex(other[1:])) for other in others), default=math.inf)
