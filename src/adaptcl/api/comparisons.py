"""`adaptcl.compare` and `adaptcl.plot`: results side by side, from Python."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.console import Console

from adaptcl.config.config import FROM_PYTHON
from adaptcl.errors import AdaptCLError, SettingError, describe_type
from adaptcl.report.comparison import Comparison
from adaptcl.report.comparison import compare as compare_runs
from adaptcl.report.csv_file import comparison_records
from adaptcl.report.figures import compose_figures
from adaptcl.report.saved_run import Run, by_strategy, model_name, read_run
from adaptcl.report.table import comparison_table
from adaptcl.report.verdict import verdict
from adaptcl.runs.files.run_files import run_folders
from adaptcl.runs.result import FinishedRun
from adaptcl.runs.resumption import model_marks

Comparable = FinishedRun | str | Path
"""A result, the folder of a run, or a folder that holds several."""


@dataclass(frozen=True)
class ShownComparison(Comparison):
    """A comparison that shows itself: `print` writes its table and verdict, a notebook too."""

    @property
    def verdict(self) -> str:
        """One sentence: who was fastest to which accuracy, and by how much."""
        return verdict(self)

    def plot(self, figure: str = "overview", *, titles: bool = True) -> Figure:
        """A figure of these runs; see `adaptcl.plot`."""
        return named_figure(self, figure, titles=titles)

    def to_dataframe(self) -> Any:
        """The table as plain numbers, in a `pandas.DataFrame`."""
        return data_frame(comparison_records(self))

    def __str__(self) -> str:
        console = Console(width=100, force_terminal=False, color_system=None)
        with console.capture() as captured:
            console.print(comparison_table(self))
        return "\n".join(filter(None, [captured.get().rstrip(), self.verdict]))

    def _repr_html_(self) -> str:
        return comparison_table(self).html() + f"<p>{escape(self.verdict)}</p>"


def compare(
    results: Comparable | Iterable[Comparable],
    *,
    over_seeds: bool | None = None,
    baseline: str | None = None,
    at_time_s: float | None = None,
    target: float | None = None,
) -> ShownComparison:
    """Compare results, and runs in folders, as `adaptcl compare` does.

    The baseline is named by strategy, label or folder; by default it is `fedavg`, else `fedavg-s`,
    else the first one. The main metric is compared at `at_time_s`, by default the end of the
    shortest run. Times are those to `target`, a value of the main metric (an accuracy as a
    fraction), by default what the baseline ends with. Runs that differ only in their seed make one
    row, unless `over_seeds` is False.
    """
    found = compare_runs(
        by_strategy(as_runs(results)),
        over_seeds=over_seeds,
        baseline=baseline,
        at_time_s=at_time_s,
        target=target,
    )
    return ShownComparison(**vars(found))


def plot(
    results: Comparable | Iterable[Comparable], figure: str = "overview", *, titles: bool = True
) -> Figure:
    """A figure of results, as the command line draws them into `figures/`.

    `figure` is the name of one without its ending: `overview`, `accuracy-over-time`, `timeline`, …
    It is a matplotlib figure: `.savefig("figure.pdf")` saves it, a notebook shows it.
    """
    return compare(results).plot(figure, titles=titles)


def named_figure(comparison: Comparison, name: str, *, titles: bool) -> Figure:
    """One of the figures; an error names those there are."""
    figures = compose_figures(comparison, titles=titles)
    if name not in figures:
        near = difflib.get_close_matches(name, figures, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(figures)}."
        raise SettingError(f"There is no figure {name!r} of these runs; {hint}")
    return figures[name]


def as_runs(results: Comparable | Iterable[Comparable]) -> list[Run]:
    """Results and run folders as tables and figures take them."""
    listed: Sequence[Any]
    if isinstance(results, FinishedRun | str | Path):
        listed = [results]
    elif isinstance(results, Iterable):
        listed = list(results)
    else:
        raise SettingError(
            f"The results are {describe_type(results)}, but they must be results or run folders."
        )
    if not listed:
        raise SettingError("There is nothing to compare: the list of results is empty.")
    return [run for place, each in enumerate(listed, 1) for run in _runs_of(each, place)]


def _runs_of(item: Any, place: int) -> list[Run]:
    if isinstance(item, str | Path):
        folder = Path(item)
        return [read_run(path) for path in run_folders(folder, levels=2) or [folder]]
    if not isinstance(item, FinishedRun):
        raise SettingError(
            f"Number {place} is {describe_type(item)}, but it must be a result or a run folder."
        )
    if item.folder is not None:
        return [read_run(item.folder)]
    settings = dict(item.settings)
    if settings.get("model") == FROM_PYTHON:
        settings["model"] = model_name(model_marks(item.model))
    strategy = item.summary.strategy
    return [Run(Path(f"run-{place}"), strategy, settings, item.rounds, item.summary)]


def data_frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """A `pandas.DataFrame` with a line for each row."""
    try:
        import pandas  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        raise AdaptCLError("Data frames need pandas; pip install pandas installs it.") from None
    return pandas.DataFrame(list(rows))
