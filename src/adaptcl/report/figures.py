"""Figures of runs, as PNG files: the same runs always give the same bytes.

Figures are groups without pyplot, so drawing leaves no state behind in the user's process.

A folder of pictures records the name and checksum of each. The next report removes the pictures of
the last one, but no file that somebody else wrote or changed.
"""

from __future__ import annotations

import io
import json
import math
import re
import textwrap
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from adaptcl.errors import RunFolderError
from adaptcl.report import panels
from adaptcl.report.comparison import Comparison, RunGroup
from adaptcl.report.palette import FAINT, STYLE, Look, looks
from adaptcl.report.saved_run import clock_of
from adaptcl.report.wording import number_of, short_duration
from adaptcl.storage import written_whole

_DPI = 160
_LETTERS_PER_INCH = 11
"""At the size of labels; titles are larger and bold."""
_TITLE_LETTERS_PER_INCH = 9
_HANDLE_LETTERS = 7
"""The width of the line beside a legend's label."""
_LEGEND_ROW_INCHES = 0.22
_ROWS_WITHIN = 2
"""Rows of a legend that the figure has room for; it grows by each further row."""
_RECORD = ".drawn.json"
"""A file in the folder with the checksum of each picture drawn last, by name."""


def draw(comparison: Comparison, folder: Path) -> SavedPictures:
    """Draw all figures of some runs into a folder, in place of those drawn there last.

    Over seeds, runs that differ only in their seed make one line: their mean, in a band from the
    lowest to the highest.
    """
    groups = [row.group for row in comparison.rows if any(run.rounds for run in row.group.runs)]
    if not groups:
        raise RunFolderError("There is nothing to draw: none of these runs has finished a round.")
    chosen = looks([group.first.strategy for group in groups])
    with figure_style():
        figures = _common_figures(comparison, groups, chosen)
        for (group, look), name in zip(
            zip(groups, chosen, strict=True), _file_names(groups), strict=True
        ):
            if group.prunes:
                figures[f"update-times-{name}.png"] = _update_times(group)
                figures[f"retention-{name}.png"] = _retention(group, look)
        images = {name: png_image(figure) for name, figure in figures.items()}
    return save_pictures(images, folder)


@contextmanager
def figure_style() -> Iterator[None]:
    """Use AdaptCL's style while drawing, whatever matplotlibrc the user has."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        yield


def legend_below(figure: Figure, *all_axes: Axes, fixed_size: bool = False) -> None:
    """Put one legend for these axes below them, where it can hide no line.

    Unless its size is fixed, the figure grows with a long legend, so that the axes keep their
    height, and labels too long for its width are broken.
    """
    entries: dict[str, Artist] = {}
    for axes in all_axes:
        handles, labels = axes.get_legend_handles_labels()
        entries.update(zip(labels, handles, strict=True))
    if not entries:
        return
    letters = figure.get_figwidth() * _LETTERS_PER_INCH
    texts = list(entries)
    if not fixed_size:
        texts = [_broken(label, int(letters) - _HANDLE_LETTERS) for label in entries]
    longest = max(len(line) for text in texts for line in text.split("\n"))
    columns = max(1, min(len(texts), int(letters / (longest + _HANDLE_LETTERS))))
    if not fixed_size:
        lines = max(text.count("\n") + 1 for text in texts) * math.ceil(len(texts) / columns)
        further = max(0, lines - _ROWS_WITHIN)
        figure.set_figheight(figure.get_figheight() + _LEGEND_ROW_INCHES * further)
    figure.legend(list(entries.values()), texts, loc="outside lower center", ncols=columns)


def png_image(figure: Figure) -> bytes:
    """The figure as a PNG file, without the program's name in it."""
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=_DPI, metadata={"Software": None})
    return image.getvalue()


def svg_image(figure: Figure) -> bytes:
    """The figure as an SVG file, without date and program's name in it."""
    image = io.BytesIO()
    figure.savefig(image, format="svg", metadata={"Date": None, "Creator": None})
    return image.getvalue()


def _common_figures(
    comparison: Comparison, groups: Sequence[RunGroup], chosen: Sequence[Look]
) -> dict[str, Figure]:
    metric = _metric(comparison)
    slug = _slug(comparison.measure.name)
    figures = {
        "overview.png": _overview(comparison, groups, chosen),
        f"{slug}-over-rounds.png": _of_all(
            f"{metric} over rounds", panels.metric_over_rounds, groups, chosen
        ),
        f"{slug}-over-time.png": _of_all(
            f"{metric} over time",
            partial(panels.metric_over_time, comparison=comparison),
            groups,
            chosen,
        ),
        "heterogeneity.png": _of_all(
            "How unequal the workers' update times are", panels.heterogeneity, groups, chosen
        ),
    }
    if comparison.baseline is not None:
        figures["equal-time.png"] = _equal_time(comparison)
    return figures


def _metric(comparison: Comparison) -> str:
    """The name of the main metric, at the beginning of a title."""
    label = comparison.measure.label
    return label[0].upper() + label[1:]


def _slug(text: str) -> str:
    """Text as a part of a file's name."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.") or "run"


def _of_all(
    title: str,
    panel: Callable[[Axes, Sequence[RunGroup], Sequence[Look]], None],
    groups: Sequence[RunGroup],
    chosen: Sequence[Look],
) -> Figure:
    figure = Figure(figsize=(7.2, 4.4), layout="constrained")
    axes = figure.subplots()
    panel(axes, groups, chosen)
    axes.set_title(title)
    _say_over_seeds(axes, groups)
    legend_below(figure, axes)
    return figure


def _equal_time(comparison: Comparison) -> Figure:
    """Who is ahead at the same time, and who is first to the same result."""
    rows = comparison.rows
    assert comparison.at_time_s is not None
    chosen = looks([row.group.first.strategy for row in rows])
    figure = Figure(figsize=(10.0, 1.8 + 0.42 * len(rows)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    panels.metric_at_time(left, rows, chosen)
    left.set_title(f"{_metric(comparison)} at {short_duration(comparison.at_time_s)}")
    panels.time_to_target(right, rows, chosen, clock_of(comparison.runs))
    right.set_title(_broken(f"Time to {comparison.target}", int(4 * _TITLE_LETTERS_PER_INCH)))
    if any(len(row.outcomes) > 1 for row in rows):
        for axes in (left, right):
            _say_below(axes, "mean, 95 % interval and each run", 4 * _LETTERS_PER_INCH)
    return figure


def _update_times(group: RunGroup) -> Figure:
    figure = Figure(figsize=(7.2, 4.4), layout="constrained")
    axes = figure.subplots()
    panels.update_times(axes, group)
    axes.set_title(_broken_title(f"Update time of each worker: {_title_label(group)}", figure))
    legend_below(figure, axes)
    return figure


def _retention(group: RunGroup, look: Look) -> Figure:
    figure = Figure(figsize=(7.2, 5.6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    panels.update_time_change(above, group, look)
    title = f"Update time and retention: {_title_label(group)}"
    above.set(title=_broken_title(title, figure), xlabel="")
    panels.retention(below, group, look)
    legend_below(figure, above)
    return figure


def _overview(comparison: Comparison, groups: Sequence[RunGroup], chosen: Sequence[Look]) -> Figure:
    """Four panels in a row; those of single workers show the run that adapts."""
    pruning = [place for place, group in enumerate(groups) if group.prunes]
    adapting = (p for p in pruning if groups[p].first.strategy == "adaptcl")
    place = next(adapting, (pruning or [0])[0])
    group, look = groups[place], chosen[place]
    spaced = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.06)
    figure = Figure(figsize=(15.0, 4.2), layout=spaced)
    first, second, third, fourth = figure.subplots(1, 4)
    panels.metric_over_time(first, groups, chosen, comparison)
    first.set_title(f"{_metric(comparison)} over time")
    panels.update_times(second, group)
    second.set_title("Update time of each worker")
    if second.lines:
        second.legend(loc="best", handlelength=1.2)
    panels.heterogeneity(third, groups, chosen)
    third.set_title("Heterogeneity over rounds")
    panels.retention(fourth, group, look)
    fourth.set_title("Retention by worker")
    room = int(figure.get_figwidth() / 4 * _LETTERS_PER_INCH)
    for axes in (second, fourth):
        _say_below(axes, _title_label(group), room)
    for axes in (first, third):
        _say_below(axes, _over_seeds(groups), room)
    legend_below(figure, first)
    return figure


def _title_label(group: RunGroup) -> str:
    """The label of a group, with the number of runs if it is a mean."""
    seeds = number_of(len(group.runs), "run")
    return group.label if len(group.runs) == 1 else f"{group.label}, mean of {seeds}"


def _over_seeds(groups: Sequence[RunGroup]) -> str:
    """Explain line and band if they stand for several runs."""
    counts = sorted({len(group.runs) for group in groups} - {1})
    return f"mean and range of {' or '.join(map(str, counts))} runs" if counts else ""


def _say_below(axes: Axes, what: str, letters: int) -> None:
    """Add words to the axis label, on further lines if they are long."""
    beside = f"{axes.get_xlabel()} · {what}"
    if len(beside) > letters:
        beside = f"{axes.get_xlabel()}\n{_broken(what, letters)}"
    if what:
        axes.set_xlabel(beside)


def _say_over_seeds(axes: Axes, groups: Sequence[RunGroup]) -> None:
    axes.set_title(_over_seeds(groups), loc="right", fontsize=10, fontweight="normal", color=FAINT)


def _broken_title(title: str, figure: Figure) -> str:
    return _broken(title, int(figure.get_figwidth() * _TITLE_LETTERS_PER_INCH))


def _broken(text: str, letters: int) -> str:
    """Break text into lines of at most this many letters."""
    return "\n".join(textwrap.wrap(text, letters, break_on_hyphens=False))


def _file_names(groups: Sequence[RunGroup]) -> list[str]:
    """Turn labels into file names that differ even if case and signs do not count."""
    names: list[str] = []
    for group in groups:
        plain = _slug(group.label)
        name, number = plain, 1
        while name in names:
            number += 1
            name = f"{plain}-{number}"
        names.append(name)
    return names


@dataclass(frozen=True)
class SavedPictures:
    """What happened to a folder of pictures."""

    paths: tuple[Path, ...]
    """Pictures drawn now."""
    removed: tuple[str, ...]
    """Names of earlier pictures that this report does not have."""
    others: tuple[str, ...]
    """Names of pictures that no report drew; they stay."""


def save_pictures(images: Mapping[str, bytes], folder: Path) -> SavedPictures:
    """Put pictures into a folder in place of those that the last report drew there."""
    folder.mkdir(parents=True, exist_ok=True)
    removed = tuple(name for name in _drawn_last(folder) if name not in images)
    for name in removed:
        (folder / name).unlink()
    # The record comes first, so that no picture is left without a record, whatever happens.
    record = {name: zlib.crc32(image) for name, image in images.items()}
    _save(json.dumps(record, indent=1).encode(), folder / _RECORD)
    for name, image in images.items():
        _save(image, folder / name)
    others = sorted(path.name for path in folder.glob("*.png") if path.name not in images)
    return SavedPictures(tuple(folder / name for name in images), removed, tuple(others))


def _drawn_last(folder: Path) -> list[str]:
    """Recorded names whose files have not changed since they were drawn."""
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


def _save(content: bytes, path: Path) -> None:
    with written_whole(path) as file:
        file.write(content)
