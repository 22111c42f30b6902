"""Files that a report leaves: replaced whole, and cleared away only if a report wrote them.

A folder of pictures remembers which it was given and with which content, so that the next
comparison drawn there does not stand among pictures of the last one, and nobody loses a picture
of his own.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import textwrap
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from adaptcl.errors import RunFolderError
from adaptcl.report import panels
from adaptcl.report.comparison import RunGroup, groups
from adaptcl.report.palette import FAINT, STYLE, Look, looks
from adaptcl.report.runs import Run
from adaptcl.report.wording import number_of

_RECORD = ".drawn.json"
"""In a folder of pictures: the checksum of each that was drawn last, by name."""


@dataclass(frozen=True)
class Drawn:
    """What became of a folder of pictures."""

    paths: tuple[Path, ...]
    """Those drawn now."""
    removed: tuple[str, ...]
    """Names of pictures of the report before that has no place in this one."""
    others: tuple[str, ...]
    """Names of pictures that are somebody else's, and still there."""


def save(content: bytes, path: Path) -> None:
    """Whoever looks at the file meanwhile sees the old one or the new one, never half of one."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        unfinished.write_bytes(content)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def save_pictures(images: Mapping[str, bytes], folder: Path) -> Drawn:
    """Put pictures into a folder, in place of those that were put there last."""
    folder.mkdir(parents=True, exist_ok=True)
    removed = tuple(name for name in _drawn_last(folder) if name not in images)
    for name in removed:
        (folder / name).unlink()
    # First the record: whatever happens between, no picture is left that nobody owns.
    record = {name: zlib.crc32(image) for name, image in images.items()}
    save(json.dumps(record, indent=1).encode(), folder / _RECORD)
    for name, image in images.items():
        save(image, folder / name)
    others = sorted(path.name for path in folder.glob("*.png") if path.name not in images)
    return Drawn(tuple(folder / name for name in images), removed, tuple(others))


def _drawn_last(folder: Path) -> list[str]:
    """Names on record whose files are still as they were drawn."""
    try:
        record = json.loads((folder / _RECORD).read_bytes())
        return [
            name
            for name, checksum in sorted(record.items())
            if re.fullmatch(r"[^/\\]+\.png", name) and _checksum(folder / name) == checksum
        ]
    except (OSError, ValueError, AttributeError):
        return []


def _checksum(path: Path) -> int | None:
    return zlib.crc32(path.read_bytes()) if path.is_file() and not path.is_symlink() else None


# Figures of runs, as PNG files: the same runs always give the same bytes.
#
# Figures are drawn without pyplot, so nothing is left behind in a process that draws for itself.

_DPI = 160
_LETTERS_PER_INCH = 11
"""Of the size of labels, at least; titles are larger and bold."""
_TITLE_LETTERS_PER_INCH = 9
_HANDLE_LETTERS = 7
"""The room that the line beside a legend's label takes."""
_LEGEND_ROW_INCHES = 0.22
_ROWS_WITHIN = 2
"""Rows of a legend that the figure has room for; for each more it grows."""


def draw(runs: Sequence[Run], folder: Path, *, over_seeds: bool = False) -> Drawn:
    """Draw all figures of these runs into a folder, in place of those drawn there last.

    Over seeds, runs that differ only in their seed are one line: their mean, in a band from the
    lowest to the highest.
    """
    begun = [run for run in runs if run.rounds]
    if not begun:
        raise RunFolderError("There is nothing to draw: none of these runs has finished a round.")
    drawn = groups(begun, over_seeds=over_seeds)
    chosen = looks([group.first for group in drawn])
    with matplotlib.rc_context():
        # A user's own matplotlibrc would make the same run look different on every machine.
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        figures = _common_figures(drawn, chosen)
        for (group, look), name in zip(
            zip(drawn, chosen, strict=True), _file_names(drawn), strict=True
        ):
            if group.prunes:
                figures[f"update-times-{name}.png"] = _update_times(group)
                figures[f"retention-{name}.png"] = _retention(group, look)
        images = {name: _image(figure) for name, figure in figures.items()}
    return save_pictures(images, folder)


def _common_figures(drawn: Sequence[RunGroup], chosen: Sequence[Look]) -> dict[str, Figure]:
    return {
        "overview.png": _overview(drawn, chosen),
        "accuracy-over-rounds.png": _of_all(
            "Accuracy over rounds", panels.accuracy_over_rounds, drawn, chosen
        ),
        "accuracy-over-time.png": _of_all(
            "Accuracy over time", panels.accuracy_over_time, drawn, chosen
        ),
        "heterogeneity.png": _of_all(
            "How unequal the workers' update times are", panels.heterogeneity, drawn, chosen
        ),
    }


def _of_all(
    title: str,
    panel: Callable[[Axes, Sequence[RunGroup], Sequence[Look]], None],
    drawn: Sequence[RunGroup],
    chosen: Sequence[Look],
) -> Figure:
    figure = Figure(figsize=(7.2, 4.4), layout="constrained")
    axes = figure.subplots()
    panel(axes, drawn, chosen)
    axes.set_title(title)
    _say_over_seeds(axes, drawn)
    _legend_below(figure, axes)
    return figure


def _update_times(group: RunGroup) -> Figure:
    figure = Figure(figsize=(7.2, 4.4), layout="constrained")
    axes = figure.subplots()
    panels.update_times(axes, group)
    axes.set_title(_broken_title(f"Update time of each worker: {_called(group)}", figure))
    _legend_below(figure, axes)
    return figure


def _retention(group: RunGroup, look: Look) -> Figure:
    figure = Figure(figsize=(7.2, 5.6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    panels.update_time_change(above, group, look)
    title = f"Update time and retention: {_called(group)}"
    above.set(title=_broken_title(title, figure), xlabel="")
    panels.retention(below, group, look)
    _legend_below(figure, above)
    return figure


def _overview(drawn: Sequence[RunGroup], chosen: Sequence[Look]) -> Figure:
    """Four panels in a row; those on single workers tell of the run that adapts."""
    pruning = [place for place, group in enumerate(drawn) if group.prunes]
    adapting = (p for p in pruning if drawn[p].first.strategy == "adaptcl")
    place = next(adapting, (pruning or [0])[0])
    group, look = drawn[place], chosen[place]
    spaced = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.06)
    figure = Figure(figsize=(15.0, 4.2), layout=spaced)
    first, second, third, fourth = figure.subplots(1, 4)
    panels.accuracy_over_time(first, drawn, chosen)
    first.set_title("Accuracy over time")
    panels.update_times(second, group)
    second.set_title("Update time of each worker")
    if second.lines:
        second.legend(loc="best", handlelength=1.2)
    panels.heterogeneity(third, drawn, chosen)
    third.set_title("Heterogeneity over rounds")
    panels.retention(fourth, group, look)
    fourth.set_title("Retention by worker")
    room = int(figure.get_figwidth() / 4 * _LETTERS_PER_INCH)
    for axes in (second, fourth):
        _say_below(axes, _called(group), room)
    for axes in (first, third):
        _say_below(axes, _over_seeds(drawn), room)
    _legend_below(figure, first)
    return figure


def _called(group: RunGroup) -> str:
    """The label of a group in a figure of its own, where nothing else says that it is a mean."""
    seeds = number_of(len(group.runs), "run")
    return group.label if len(group.runs) == 1 else f"{group.label}, mean of {seeds}"


def _over_seeds(drawn: Sequence[RunGroup]) -> str:
    """What a line and its band are, where they are of several runs."""
    counts = sorted({len(group.runs) for group in drawn} - {1})
    return f"mean and range of {' or '.join(map(str, counts))} runs" if counts else ""


def _say_below(axes: Axes, what: str, letters: int) -> None:
    """Short words beside the quantity on the axis, long ones in lines of their own."""
    beside = f"{axes.get_xlabel()} · {what}"
    if len(beside) > letters:
        beside = f"{axes.get_xlabel()}\n{_broken(what, letters)}"
    if what:
        axes.set_xlabel(beside)


def _say_over_seeds(axes: Axes, drawn: Sequence[RunGroup]) -> None:
    axes.set_title(_over_seeds(drawn), loc="right", fontsize=10, fontweight="normal", color=FAINT)


def _legend_below(figure: Figure, axes: Axes) -> None:
    """Outside the axes, where it can hide no line, and not at the cost of their height."""
    width = figure.get_figwidth()
    handles, labels = axes.get_legend_handles_labels()
    labels = [_broken(label, int(width * _LETTERS_PER_INCH) - _HANDLE_LETTERS) for label in labels]
    longest = max(len(line) for label in labels for line in label.split("\n"))
    columns = int(width * _LETTERS_PER_INCH / (longest + _HANDLE_LETTERS))
    columns = max(1, min(len(labels), columns))
    lines = max(label.count("\n") + 1 for label in labels) * math.ceil(len(labels) / columns)
    height = figure.get_figheight() + _LEGEND_ROW_INCHES * max(0, lines - _ROWS_WITHIN)
    figure.set_figheight(height)
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def _broken_title(title: str, figure: Figure) -> str:
    return _broken(title, int(figure.get_figwidth() * _TITLE_LETTERS_PER_INCH))


def _broken(text: str, letters: int) -> str:
    """In lines of at most so many letters."""
    return "\n".join(textwrap.wrap(text, letters, break_on_hyphens=False))


def _file_names(drawn: Sequence[RunGroup]) -> list[str]:
    """Labels as parts of file names, distinct even where capitals and signs do not count."""
    names: list[str] = []
    for group in drawn:
        plain = re.sub(r"[^a-z0-9.]+", "-", group.label.lower()).strip("-.") or "run"
        name, number = plain, 1
        while name in names:
            number += 1
            name = f"{plain}-{number}"
        names.append(name)
    return names


def _image(figure: Figure) -> bytes:
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=_DPI, metadata={"Software": None})
    return image.getvalue()
