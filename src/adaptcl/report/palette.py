"""The look of the figures: one colour a strategy, everywhere, and legible to the colour-blind.

Colours are those of Okabe and Ito and of Tol's muted scheme. Runs of one strategy share its
colour and are told apart by the dashes of their lines.
"""

from __future__ import annotations

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
_DASHES: tuple[tuple[float, ...], ...] = ((), (5, 2), (1.5, 1.5), (6, 2, 1.5, 2))


@dataclass(frozen=True)
class Look:
    """How one run is drawn in every figure."""

    colour: str
    dashes: tuple[float, ...]


def looks(runs: Sequence[Run]) -> list[Look]:
    """One look a run, in the order of the runs."""
    unknown = sorted({run.strategy for run in runs} - _STRATEGY_COLOURS.keys())
    colours = _STRATEGY_COLOURS | {
        name: _OTHER_COLOURS[place % len(_OTHER_COLOURS)] for place, name in enumerate(unknown)
    }
    drawn: Counter[str] = Counter()
    chosen = []
    for run in runs:
        dashes = _DASHES[drawn[run.strategy] % len(_DASHES)]
        drawn[run.strategy] += 1
        chosen.append(Look(colours[run.strategy], dashes))
    return chosen
