"""Figures of experiments, as SVG files: the same results always give the same bytes."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from adaptcl.report.palette import STYLE
from adaptcl.storage import written_whole
from paper import drawings
from paper.drawings import Curve, curves
from paper.experiment import Part
from paper.profile import Profile
from paper.store import Store

_PANEL = (6.0, 4.0)
"""Inches that one panel takes."""

Drawing = Callable[[Axes, Sequence[Curve]], None]
DRAWINGS: dict[str, Drawing] = {
    "accuracy-over-time": drawings.accuracy_over_time,
    "accuracy-over-rounds": drawings.accuracy_over_rounds,
    "similarity": drawings.similarity,
    "round-time": drawings.round_time,
    "worker-times": drawings.worker_times,
    "heterogeneity": drawings.heterogeneity,
    "trade-off": drawings.trade_off,
}


def draw_part(part: Part, store: Store, path: Path) -> Path | None:
    """A part's figures side by side; None while there is nothing to draw."""
    drawn = curves(part, store)
    if not drawn or not part.figures:
        return None

    def fill(axes: Sequence[Axes]) -> None:
        for each, name in zip(axes, part.figures, strict=True):
            DRAWINGS[name](each, drawn)
            if name == "trade-off":
                each.set_xlabel(part.x_label)

    return _drawn(len(part.figures), fill, path)


def draw_overview(parts: Sequence[Part], store: Store, path: Path) -> Path | None:
    """Accuracy over time of several parts, side by side: the picture a reader remembers."""
    by_part = [curves(part, store) for part in parts]
    if not all(by_part):
        return None

    def fill(axes: Sequence[Axes]) -> None:
        for each, part, drawn in zip(axes, parts, by_part, strict=True):
            drawings.accuracy_over_time(each, drawn)
            each.set_title(part.title)

    return _drawn(len(parts), fill, path)


def draw_profiles(profiles: Sequence[Profile], path: Path) -> Path | None:
    """Training time against retention, for each device."""
    if not profiles:
        return None
    return _drawn(1, lambda axes: drawings.profiles(axes[0], profiles), path)


def _drawn(panels: int, fill: Callable[[Sequence[Axes]], None], path: Path) -> Path:
    with matplotlib.rc_context():
        # A user's own matplotlibrc would make the same results look different on every machine.
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({**STYLE, "svg.hashsalt": "adaptcl"})
        figure = Figure(figsize=(_PANEL[0] * panels, _PANEL[1]), layout="constrained")
        axes = list(figure.subplots(1, panels, squeeze=False)[0])
        fill(axes)
        _legend_below(figure, axes)
        image = io.BytesIO()
        figure.savefig(image, format="svg", metadata={"Date": None, "Creator": None})
    with written_whole(path) as file:
        file.write(image.getvalue())
    return path


def _legend_below(figure: Figure, axes: Sequence[Axes]) -> None:
    """One legend for all panels, outside the axes, where it can hide no line."""
    entries = {}
    for each in axes:
        handles, labels = each.get_legend_handles_labels()
        entries.update(dict(zip(labels, handles, strict=True)))
    if not entries:
        return
    longest = max(len(label) for label in entries)
    columns = max(1, min(len(entries), int(figure.get_figwidth() * 11 / (longest + 7))))
    figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=columns)
