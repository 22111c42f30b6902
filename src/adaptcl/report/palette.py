"""The look of the figures: one colour a strategy, everywhere, and legible to the colour-blind.

Colours of strategies are those of Okabe and Ito and of Tol's muted scheme. Of several runs of one
strategy the first has its colour and each other one a colour of its own, as strategies have that
are not known here; runs of one strategy have different dashes besides. When the chosen colours are
used up, more are taken from all over the colour space, each as far as can be from those in use.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from adaptcl.report.runs import Run

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
}
"""Settings of matplotlib that hold while a figure is drawn; it has a type of its own for their
names, but only in its latest versions."""

_STRATEGY_COLOURS = {
    "fedavg": "#7a7a7a",
    "fedavg-s": "#0072b2",
    "fedasync-s": "#e69f00",
    "ssp-s": "#009e73",
    "dc-asgd-a-s": "#cc79a7",
    "adaptcl": "#d55e00",
    "heterofl": "#56b4e9",
    "fedrolex": "#882255",
    "fedbuff": "#999933",
}
_OTHER_COLOURS = ("#332288", "#44aa99", "#aa4499", "#117733", "#ddaa33", "#661100")
_REPEAT_COLOURS = (
    "#4400aa",
    "#22ccaa",
    "#662244",
    "#ee66ee",
    "#004400",
    "#cccc00",
    "#eeaaee",
    "#88cc66",
    *_STRATEGY_COLOURS.values(),
)
"""For runs of a strategy that has been drawn before. The first eight are far from each other and
from the colours of `fedavg`, `fedavg-s` and `adaptcl`, with any kind of colour-blindness."""
_SHADES = tuple(
    f"#{red:02x}{green:02x}{blue:02x}"
    for red, green, blue in itertools.product((0, 64, 128, 192, 240), repeat=3)
    if 0.3 * red + 0.59 * green + 0.11 * blue < 190
)
"""All over the colour space, but for those too pale for a line on white."""
_DASHES: tuple[tuple[float, ...], ...] = ((), (5, 2), (1.5, 1.5), (6, 2, 1.5, 2))
_ALIKE = 80.0
"""Colours nearer to each other than this, in red, green and blue up to 255, look alike."""


@dataclass(frozen=True)
class Look:
    """How one run is drawn in every figure."""

    colour: str
    dashes: tuple[float, ...]


def looks(runs: Sequence[Run]) -> list[Look]:
    """One look a run, in the order of the runs; no two strategies share a colour."""
    present = {run.strategy for run in runs}
    colours = {name: colour for name, colour in _STRATEGY_COLOURS.items() if name in present}
    for name in sorted(present - colours.keys()):
        colours[name] = _free(_OTHER_COLOURS, list(colours.values()))
    own = list(colours.values())
    # A repeat may be nearer to another repeat than to any strategy's own colour.
    apart = [c for c in _REPEAT_COLOURS if _nearest(c, own) >= _ALIKE]
    taken, drawn = list(own), Counter[str]()
    chosen = []
    for run in runs:
        time = drawn[run.strategy]
        drawn[run.strategy] += 1
        colour = _free(apart, taken) if time else colours[run.strategy]
        taken.append(colour)
        order = [
            Look(colour, _DASHES[(time + step) % len(_DASHES)]) for step in range(len(_DASHES))
        ]
        # Colours come again when there are more runs than colours, and then with other dashes.
        chosen.append(next((look for look in order if look not in chosen), order[0]))
    return chosen


def _free(wanted: Sequence[str], taken: Sequence[str]) -> str:
    """The first of the wanted colours that is free, else of all one far from those in use."""
    unused = (colour for colour in wanted if colour not in taken)
    return next(unused, None) or max(_SHADES, key=lambda colour: _nearest(colour, taken))


def _nearest(colour: str, others: Sequence[str]) -> float:
    return min((_distance(colour, other) for other in others), default=math.inf)


def _distance(one: str, other: str) -> float:
    return math.dist(*(tuple(bytes.fromhex(colour[1:])) for colour in (one, other)))
