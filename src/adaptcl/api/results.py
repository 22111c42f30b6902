"""What `adaptcl.run` returns and shows: a result, or several, and the progress meanwhile."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from html import escape
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from adaptcl.api.comparisons import ShownComparison, compare, data_frame
from adaptcl.errors import RunFolderError
from adaptcl.events import Listener
from adaptcl.page.html import write_reports
from adaptcl.records import RoundRecord
from adaptcl.report.figures import PictureOptions, draw, image_of
from adaptcl.report.live_display import in_notebook
from adaptcl.report.progress import Progress
from adaptcl.runs.files.run_files import FIGURES
from adaptcl.runs.result import FailedRun, FinishedRun


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
        """One row a round, or a worker and round, in a `pandas.DataFrame`."""
        return data_frame((_worker_rows if by_worker else _round_rows)(self.rounds))

    def _repr_html_(self) -> str:
        return _shown(compare(self))


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
        """One row a run with the figures of its summary, in a `pandas.DataFrame`."""
        return data_frame([each.summary.to_dict() for each in self])

    def __repr__(self) -> str:
        return "\n".join([*map(repr, self), *map(str, self.failed)])

    def _repr_html_(self) -> str:
        failures = "".join(f"<p>{escape(str(each))}</p>" for each in self.failed)
        return _shown(self.compare()) + failures


def show_in_folder(
    results: Sequence[Result], folder: Path | None, pictures: PictureOptions
) -> None:
    """Draw figures and write the page into a folder, as the command line does."""
    if folder is None or not pictures.formats:
        return
    comparison = compare(results)
    try:
        draw(comparison, folder / FIGURES, pictures)
        write_reports(comparison.runs, folder)
    except OSError as error:
        raise RunFolderError(f"{folder} cannot be written: {error.strerror}.") from None


def _shown(comparison: ShownComparison) -> str:
    image = base64.b64encode(image_of(comparison.plot(), "png")).decode()
    picture = f"<img style='max-width:100%' src='data:image/png;base64,{image}'>"
    return comparison._repr_html_() + picture


def _round_rows(rounds: Sequence[RoundRecord]) -> list[dict[str, Any]]:
    """One row a round, with all that is known of the round itself."""
    return [
        {each.name: getattr(record, each.name) for each in fields(record) if each.name != "workers"}
        for record in rounds
    ]


def _worker_rows(rounds: Sequence[RoundRecord]) -> list[dict[str, Any]]:
    """One row a worker and round."""
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
    heard = [listeners] if callable(listeners) else [*listeners]
    is_shown = any(isinstance(each, Progress) for each in heard)
    if asked is False or is_shown or not (asked or in_notebook()):
        yield heard
        return
    with Progress() as progress:
        yield [progress, *heard]
