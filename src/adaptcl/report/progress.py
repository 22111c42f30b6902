"""Progress of runs: a live display in a terminal or notebook, elsewhere a line for each round.

One long step beside them, such as fetching or reading data, has a bar.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich import progress
from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from adaptcl.errors import name_workers
from adaptcl.events import (
    Event,
    RoundFinished,
    RunFinished,
    RunStarted,
    Waiting,
    Warned,
    WorkerJoined,
    WorkerLost,
    WorkerSilent,
)
from adaptcl.quantities import duration, short_duration
from adaptcl.records import RoundRecord, Summary
from adaptcl.report.comparisons.participation import who_hardly_took_part
from adaptcl.report.live_display import LiveDisplay, NotebookDisplay, RunState, in_notebook
from adaptcl.report.wording import metric_span, number_of, span

PATIENCE = 1.0  # seconds a step may take before a bar is worth the flicker


class Progress:
    """A listener that shows the progress of runs; use it as a context manager around them.

    Runs may follow one another: each leaves one line behind before the next takes its place.
    Leaving the context, also by an error or Ctrl-C, stops the display and restores the terminal.
    The last state stays on the screen.
    """

    def __init__(
        self,
        console: Console | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        said: set[str] | None = None,
    ) -> None:
        """`said` is shared by the displays of one command: none says its clock or a warning again
        that stands in it."""
        self._in_notebook = console is None and in_notebook()
        self._console = _standard_output() if console is None else console
        self._clock = clock
        self._said = set() if said is None else said
        self._state: RunState | None = None
        self._live: Live | NotebookDisplay | None = None

    def __enter__(self) -> Progress:
        if self._in_notebook:
            self._live = NotebookDisplay(self._render, clock=self._clock)
        elif _can_redraw(self._console):
            self._live = Live(console=self._console, get_renderable=self._render)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            self._end_unfinished()
            self._state = RunState.at_start(event, self._clock())
        elif self._state is not None:
            self._state = self._state.after(event)
        for line in self._lines(event):
            if isinstance(event, RunStarted | Warned):
                if line in self._said:
                    continue
                self._said.add(line)
            self._print(line)
        if isinstance(self._live, NotebookDisplay) and self._state is not None:
            self._live.refresh()  # a terminal is redrawn by a thread of Rich

    def _render(self) -> RenderableType:
        state = self._state
        return Text() if state is None else LiveDisplay(state, self._clock())

    def _end_unfinished(self) -> None:
        """Say that the previous run stopped early, before its display is replaced."""
        before = self._state
        if before is not None and before.summary is None:
            done = f"{before.rounds_done} of {number_of(before.run.rounds, 'round')}"
            self._print(f"{before.run.strategy} stopped after {done}")

    def _lines(self, event: Event) -> list[str]:
        match event:
            case RunStarted(clock=clock) if clock:
                return [f"clock: {clock}"]
            case RoundFinished(record=record) if self._live is None and self._state:
                return [round_line(self._state.run, record)]
            case RunFinished(summary=summary):
                away = self._state.lost if self._state else ()
                return [finished_line(summary, len(away)), *_warned(summary)]
            case Warned(message=message) if not self._in_notebook:  # it shows Python's warnings
                return [f"warning: {message}"]
            case Waiting(workers=missing, least=least) if least:
                until = f"until {number_of(least, 'worker')} are there"
                return [f"the run pauses {until}; it waits for {name_workers(missing)}"]
            case Waiting(workers=missing):
                return [f"still waiting for {name_workers(missing)}"]
            case WorkerSilent(worker=worker, silent_s=silent_s, limit_s=limit_s):
                limit = short_duration(limit_s)
                return [f"worker {worker} is silent for {silent_s:.0f} s; after {limit} it is lost"]
            case WorkerLost(worker=worker, round=number, reason=reason):
                return [f"worker {worker} lost in round {number}: {reason}"]
            case WorkerJoined(worker=worker, round=number):
                return [f"worker {worker} joined in round {number}"]
            case _:
                return []

    def _print(self, line: str) -> None:
        if isinstance(self._live, NotebookDisplay):
            self._live.lines.append(Text(line))
            return
        encoding = self._console.encoding
        writable = line.encode(encoding, "replace").decode(encoding)
        style = "yellow" if line.startswith("warning:") else ""
        self._console.print(Text(writable, style=style), soft_wrap=True)


def round_line(run: RunStarted, record: RoundRecord) -> str:
    metric, value = run.metric, record.main_value
    spread = list(record.worker_values.values())
    kept = [worker.retention for worker in record.workers]
    parts = [
        f"{run.strategy} round {record.round}/{run.rounds}",
        f"time {duration(record.virtual_time_s)}",
        *present_of(len(record.participants) or run.workers, len(record.missing)),
        *([] if value is None else [f"{metric.label} {metric.write(value)}"]),
        *([f"workers {metric_span(metric, spread)}"] if spread else []),
        *([] if record.heterogeneity is None else [f"H {record.heterogeneity:.3f}"]),
        *([f"retention {span(kept, dash='-')}"] if kept else []),
    ]
    return "  ".join(parts)


def present_of(workers: int, missing: int) -> list[str]:
    """How many took part, where somebody is missing."""
    return [f"{workers - missing} of {number_of(workers, 'worker')}"] if missing else []


def finished_line(summary: Summary, away: int = 0) -> str:
    """A line about a run; so many workers were `away` when it ended."""
    metric = summary.measure
    best = f"best {metric.write(summary.best_value)} in round {summary.best_round}"
    parts = [
        f"{summary.strategy} finished {number_of(summary.rounds, 'round')}{ended_by(summary)}",
        f"time {duration(summary.virtual_time_s)}",
        *present_of(summary.workers, away),
        f"{metric.label} {metric.write(summary.main_value)} ({best})",
        *([f"workers {metric_span(metric, spread)}"] if (spread := summary.worker_values) else []),
        f"H {summary.heterogeneity_first:.3f} to {summary.heterogeneity_last:.3f}",
        f"retention {span(summary.retention, dash='-')}",
    ]
    return "  ".join(parts)


def ended_by(summary: Summary) -> str:
    """Say what ended a run before all its rounds were done; empty if nothing did."""
    return f" (ended by {summary.stopped_by})" if summary.stopped_by else ""


def _warned(summary: Summary) -> list[str]:
    return [f"warning: {sentence}" for sentence in who_hardly_took_part(summary)]


def _standard_output() -> Console:
    """Keep escape codes out of a pipe even if FORCE_COLOR is set, as it often is in CI.

    In a notebook a line is text too: Rich would make an output of each.
    """
    return Console(force_terminal=None if sys.stdout.isatty() else False, force_jupyter=False)


def _can_redraw(console: Console) -> bool:
    """The live display needs a terminal that moves its cursor and shows Unicode bars."""
    unicode = console.encoding.lower().startswith("utf")
    return console.is_terminal and not console.is_dumb_terminal and unicode


@contextmanager
def bar(
    title: str,
    *,
    in_bytes: bool = False,
    console: Console | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Callable[[int, int | None], None]]:
    """Yield a function of (done, total) that draws a bar once the step turns out to be long.

    The bar goes to standard error and disappears at the end. Without a terminal there is no bar.
    """
    console = console or Console(stderr=True, force_terminal=None if sys.stderr.isatty() else False)
    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn() if in_bytes else progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(),
    )
    bars = progress.Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    )
    task = bars.add_task(title, total=None)
    began = clock()

    def show(done: int, total: int | None) -> None:
        if not bars.live.is_started and clock() - began > PATIENCE:
            bars.start()
        bars.update(task, completed=done, total=total)

    try:
        yield show
    finally:
        bars.stop()
