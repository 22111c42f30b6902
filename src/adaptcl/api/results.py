"""What `adaptcl.run` returns: results that compare and show themselves."""

from __future__ import annotations

import base64
import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from html import escape
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from adaptcl.config.config import FROM_PYTHON
from adaptcl.errors import AdaptCLError, SettingError, describe_type
from adaptcl.events import Listener
from adaptcl.page.report import write_reports
from adaptcl.records import RoundRecord
from adaptcl.report.comparisons.comparison import Comparison
from adaptcl.report.comparisons.comparison import compare as compare_runs
from adaptcl.report.csv_file import comparison_records
from adaptcl.report.figures.drawing import compose_figures, draw
from adaptcl.report.figures.pictures import PictureOptions, image_of
from adaptcl.report.live_display import in_notebook
from adaptcl.report.progress import Progress
from adaptcl.report.saved_run import Run, by_strategy, model_name, read_run
from adaptcl.report.table import comparison_table
from adaptcl.report.verdicts.verdict import verdict
from adaptcl.runs.files.run_files import FIGURES, run_folders
from adaptcl.runs.result import FailedRun, FinishedRun
from adaptcl.runs.resumption import model_marks
from adaptcl.settings import parse_seconds

Comparable = FinishedRun | str | Path
"""A result, the folder of a run, or a folder that holds several."""


@dataclass(frozen=True)
class ShownComparison(Comparison):
    """A comparison that shows itself: `print` writes its table and verdict, a notebook too."""

    @property
    def verdict(self) -> str:
        """Who was fastest to which accuracy, and by how much; on further lines what to do next."""
        return verdict(self)

    def plot(self, figure: str = "overview", *, titles: bool = True) -> Figure:
        """A figure of these runs; see `adaptcl.plot`."""
        return named_figure(self, figure, titles=titles)

    def to_dataframe(self) -> Any:
        """The table as plain numbers, in a `pandas.DataFrame`."""
        records = comparison_records(self)
        rows = [{k: None if v == "" else v for k, v in each.items()} for each in records]
        return data_frame([{**each, "finished": each["finished"] == "true"} for each in rows])

    def __str__(self) -> str:
        return "\n".join(filter(None, [str(comparison_table(self)), self.verdict]))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return comparison_table(self).html() + "".join(
            f"<p>{escape(line)}</p>" for line in self.verdict.splitlines()
        )


def compare(
    *results: Comparable | Iterable[Comparable],
    over_seeds: bool | None = None,
    baseline: str | None = None,
    at_time: float | str | None = None,
    target: float | None = None,
    target_accuracy: float | None = None,
) -> ShownComparison:
    """Compare results, and runs in folders, as `adaptcl compare` does: one by one, or in a list.

    The baseline is named by strategy, label or folder; by default it is `fedavg`, else `fedavg-s`,
    else the first one. The main metric is compared at `at_time` (seconds, or words such as
    "90min"), by default where the first of the curves ends. Times are those to `target`, a value of
    the main metric in its own unit, or to `target_accuracy` in per cent; by default they are those
    to what the baseline ends with. Runs that differ only in their seed make one row, unless
    `over_seeds` is False.
    """
    if target_accuracy is not None:
        target = _fraction(target_accuracy)
    found = compare_runs(
        by_strategy(as_runs(results[0] if len(results) == 1 else _flat(results))),
        over_seeds=over_seeds,
        baseline=baseline,
        at_time_s=_seconds(at_time),
        target=target,
    )
    return ShownComparison(**vars(found))


def _fraction(per_cent: float) -> float:
    if not 1 < per_cent <= 100:
        raise SettingError(
            f"target_accuracy is {per_cent}, but it is in per cent, above 1 and at most 100."
        )
    return per_cent / 100


def _seconds(time: float | str | None) -> float | None:
    try:
        return parse_seconds(time) if isinstance(time, str) else time
    except ValueError:
        raise SettingError(
            f"at_time is {time!r}, but it is a number of seconds or a time such as '90min'."
        ) from None


def plot(
    results: Comparable | Iterable[Comparable], figure: str = "overview", *, titles: bool = True
) -> Figure:
    """A figure of results, as the command line draws them into `figures/`.

    `figure` is the name of one without its ending: `overview`, `accuracy-over-time`, `timeline`, …
    It is a matplotlib figure: `.savefig("figure.pdf")` saves it, a notebook shows it.
    """
    return compare(results).plot(figure, titles=titles)


def named_figure(comparison: Comparison, name: str, *, titles: bool) -> Figure:
    figures = compose_figures(comparison, titles=titles)
    if name not in figures:
        near = difflib.get_close_matches(name, figures, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(figures)}."
        raise SettingError(f"There is no figure {name!r} of these runs; {hint}")
    return figures[name]


def _flat(results: Iterable[Comparable | Iterable[Comparable]]) -> Iterator[Comparable]:
    for each in results:
        yield from each if isinstance(each, list | tuple) else [each]  # type: ignore[misc]


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
    try:
        import pandas  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        raise AdaptCLError("Data frames need pandas; pip install pandas installs it.") from None
    return pandas.DataFrame(list(rows))


@dataclass(frozen=True, repr=False)
class Result(FinishedRun):
    """The result of a run. A notebook shows its table and its overview."""

    @classmethod
    def of(cls, finished: FinishedRun) -> Result:
        return cls(**{each.name: getattr(finished, each.name) for each in fields(finished)})

    def plot(self, figure: str = "overview", *, titles: bool = True) -> Figure:
        """A figure of the run; see `adaptcl.plot`."""
        return compare(self).plot(figure, titles=titles)

    def to_dataframe(self, *, by_worker: bool = False) -> Any:
        """One row for each round, or, with `by_worker`, for each worker in each round.

        It is a `pandas.DataFrame`.
        """
        return data_frame((_worker_rows if by_worker else _round_rows)(self.rounds))

    def _repr_html_(self) -> str:
        return _html(compare(self))


class Results(tuple[Result, ...]):
    """The results of several runs, in the order in which they ran."""

    failed: tuple[FailedRun, ...] = ()
    """Runs that failed, and why."""

    def compare(self, **options: Any) -> ShownComparison:
        """Compare them; the options are those of `adaptcl.compare`."""
        return compare(self, **options)

    def plot(self, figure: str = "overview", *, titles: bool = True) -> Figure:
        """A figure of all runs; see `adaptcl.plot`."""
        return self.compare().plot(figure, titles=titles)

    def to_dataframe(self) -> Any:
        """One row for each run with the numbers of its summary, in a `pandas.DataFrame`."""
        return data_frame([each.summary.to_dict() for each in self])

    def __repr__(self) -> str:
        return "\n".join([*map(repr, self), *map(str, self.failed)])

    def _repr_html_(self) -> str:
        failures = "".join(f"<p>{escape(str(each))}</p>" for each in self.failed)
        return _html(self.compare()) + failures


def show_in_folder(results: Sequence[Result], folder: Path, pictures: PictureOptions) -> None:
    """Draw figures and write the page into a folder, as the command line does."""
    comparison = compare(results)
    if pictures.formats:
        draw(comparison, folder / FIGURES, pictures)
    write_reports(comparison.runs, folder)


def _html(comparison: ShownComparison) -> str:
    image = base64.b64encode(image_of(comparison.plot(), "png")).decode()
    picture = f"<img style='max-width:100%' src='data:image/png;base64,{image}'>"
    return comparison._repr_html_() + picture


def _round_rows(rounds: Sequence[RoundRecord]) -> list[dict[str, Any]]:
    """One row for each round, with all that is known of the round itself."""
    return [
        {each.name: getattr(record, each.name) for each in fields(record) if each.name != "workers"}
        for record in rounds
    ]


def _worker_rows(rounds: Sequence[RoundRecord]) -> list[dict[str, Any]]:
    """One row for each worker in each round."""
    return [
        {"round": record.round, "virtual_time_s": record.virtual_time_s} | asdict(worker)
        for record in rounds
        for worker in record.workers
    ]


@contextmanager
def with_progress(
    asked: bool | None, listeners: Listener | Sequence[Listener]
) -> Iterator[list[Listener]]:
    """The listeners of a call, and one that shows the progress if nothing else does."""
    listed = [listeners] if callable(listeners) else [*listeners]
    is_shown = any(isinstance(each, Progress) for each in listed)
    if asked is False or is_shown or not (asked or in_notebook()):
        yield listed
        return
    with Progress() as progress:
        yield [progress, *listed]
