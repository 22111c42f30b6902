"""The live display of one run, in a terminal or a notebook: a heading, the rounds and the workers.

Each event turns the run's state into a new state; no state ever changes. So the thread that
redraws the screen reads one at any moment without a lock.
"""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import StringIO
from types import MappingProxyType
from typing import Any

from rich.bar import Bar
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from adaptcl.events import (
    Event,
    RoundFinished,
    RunFinished,
    RunStarted,
    UpdateArrived,
    WorkerJoined,
    WorkerLost,
)
from adaptcl.quantities import ABSENT, duration
from adaptcl.records import RoundRecord, Summary, WorkerRecord
from adaptcl.report.wording import HETEROGENEITY, metric_span, number_of, span

_MOST_ROWS = 20  # more workers than this are not listed one by one
_SLOWEST_ROWS = 10
_LINES_BESIDES_ROWS = 8
"""Heading, rounds, figures, column names, blank lines and the line for workers not listed."""
_SPARKS = "▁▂▃▄▅▆▇█"
_SPARKLINE_WIDTH = 24
_BAR_WIDTH = 18
_REDRAWN_S = 0.25  # at most this often the output is replaced, however much happens
_NOTEBOOK_WIDTH = 100
_NOTEBOOK_HEIGHT = 50
_NOTEBOOK_LINES = 100  # of more lines than this only the latest are shown
_HTML = "<pre style='line-height:normal;white-space:pre;overflow-x:auto'>{code}</pre>"


@dataclass(frozen=True)
class RunState:
    """A run as its events describe it so far."""

    run: RunStarted
    started_at: float  # when this session of the run began, on the display's clock
    rounds_done: int
    virtual_time_s: float = 0.0
    heterogeneity_first: float | None = None
    heterogeneity: float | None = None
    tests: tuple[float, ...] = ()  # values of the main metric
    workers: Mapping[int, WorkerRecord | None] = field(default_factory=lambda: MappingProxyType({}))
    """The latest record of each worker; None before its first round."""
    pruned: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    """The rate of each worker's latest pruning."""
    arrived: frozenset[int] = frozenset()  # workers whose update came after the last round closed
    lost: frozenset[int] = frozenset()
    summary: Summary | None = None

    @classmethod
    def at_start(cls, run: RunStarted, now: float) -> RunState:
        nobody = MappingProxyType(dict.fromkeys(range(run.workers)))
        return cls(run=run, started_at=now, rounds_done=run.rounds_done, workers=nobody)

    def after(self, event: Event) -> RunState:
        match event:
            case UpdateArrived(worker=worker, virtual_time_s=time_s):
                latest = max(self.virtual_time_s, time_s)
                return replace(self, arrived=self.arrived | {worker}, virtual_time_s=latest)
            case RoundFinished(record=record):
                return self._after_round(record)
            case WorkerLost(worker=worker):
                return replace(self, lost=self.lost | {worker})
            case WorkerJoined(worker=worker):
                known = MappingProxyType({worker: None, **self.workers})
                return replace(self, lost=self.lost - {worker}, workers=known)
            case RunFinished(summary=summary):
                return replace(self, summary=summary)
            case _:
                return self

    @property
    def worker_values(self) -> list[float]:
        """The main metric of each worker's latest test, where workers test."""
        tests = (each.test for each in self.workers.values() if each is not None)
        values = (test.metrics.get(self.run.metric.name) for test in tests if test is not None)
        return [value for value in values if value is not None]

    def seconds_left(self, now: float) -> float | None:
        """Estimate from the rounds of this session; None before its first round ends."""
        done_here = self.rounds_done - self.run.rounds_done
        if done_here <= 0:
            return None
        rounds_left = max(0, self.run.rounds - self.rounds_done)
        return (now - self.started_at) / done_here * rounds_left

    def _after_round(self, record: RoundRecord) -> RunState:
        value, first = record.main_value, self.heterogeneity_first
        measured = (value,) if value is not None and math.isfinite(value) else ()
        pruned = {w.worker: w.pruned_rate for w in record.workers if w.pruned_rate != 0}
        return replace(
            self,
            rounds_done=record.round,
            virtual_time_s=record.virtual_time_s,
            heterogeneity_first=record.heterogeneity if first is None else first,
            heterogeneity=record.heterogeneity,
            tests=self.tests + measured,
            workers=MappingProxyType({**self.workers, **{w.worker: w for w in record.workers}}),
            pruned=MappingProxyType({**self.pruned, **pruned}),
            arrived=frozenset(),
        )


@dataclass(frozen=True)
class LiveDisplay:
    """A run's state at one moment, drawn for the terminal."""

    state: RunState
    now: float

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._heading()
        yield self._rounds()
        yield self._figures()
        yield Text()
        shown, others = _shown_workers(self.state, options.size.height)
        yield self._workers(shown)
        if others:
            yield _others_line(self.state, others)

    def _heading(self) -> Text:
        run = self.state.run
        return Text.assemble(
            (run.strategy, "bold"),
            f"  {run.model} on {run.data}, {number_of(run.workers, 'worker')}",
            no_wrap=True,
            overflow="ellipsis",
        )

    def _rounds(self) -> Table:
        state = self.state
        done, rounds = state.rounds_done, state.run.rounds
        left = state.seconds_left(self.now)
        line = Table.grid(padding=(0, 1))
        line.add_row(
            Text(f"round {done}/{rounds}"),
            ProgressBar(total=max(1, rounds), completed=done, width=32),
            Text(f"{_clock(self.now - state.started_at)} elapsed", style="dim"),
            Text("" if left is None else f"{_clock(left)} left", style="dim"),
        )
        return line

    def _figures(self) -> Text:
        state = self.state
        text = Text(no_wrap=True, overflow="ellipsis")
        if state.tests:
            metric = state.run.metric
            text.append(f"{metric.label} ").append(metric.write(state.tests[-1]), "bold green")
            text.append(f" {sparkline(state.tests)}  ", "green")
        if spread := state.worker_values:
            text.append(f"workers {metric_span(state.run.metric, spread)}  ")
        text.append("H ").append(HETEROGENEITY.write(state.heterogeneity), "bold")
        if state.heterogeneity_first is not None:
            text.append(f" (first {HETEROGENEITY.write(state.heterogeneity_first)})", "dim")
        return text.append("  virtual time ").append(duration(state.virtual_time_s), "bold")

    def _workers(self, shown: Sequence[int]) -> Table:
        state = self.state
        known = [record for record in state.workers.values() if record is not None]
        slowest = max((record.update_time_s for record in known), default=0.0)
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        for name in ("worker", "update time", "", "retention", "pruned", "update"):
            table.add_column(name, justify="left" if name in ("", "update") else "right")
        for worker in shown:
            time, bar, kept = _record_cells(state.workers[worker], slowest)
            rate = state.pruned.get(worker)
            pruned = Text(ABSENT if rate is None else f"{rate:.2f}")
            table.add_row(str(worker), time, bar, kept, pruned, self._arrival_text(worker))
        return table

    def _arrival_text(self, worker: int) -> Text:
        if worker in self.state.lost:
            return Text("lost", style="red")
        if self.state.summary is not None:
            return Text()
        if worker in self.state.arrived:
            return Text("✓ arrived", style="green")
        return Text("…", style="dim")


def sparkline(values: Sequence[float]) -> str:
    """Draw the latest values as small bars between their lowest and highest."""
    latest = values[-_SPARKLINE_WIDTH:]
    low, high = min(latest), max(latest)
    if not high > low:
        return _SPARKS[0] * len(latest)
    return "".join(_SPARKS[round((v - low) / (high - low) * (len(_SPARKS) - 1))] for v in latest)


def _record_cells(record: WorkerRecord | None, slowest: float) -> tuple[Text, Text | Bar, Text]:
    if record is None:
        return Text(ABSENT), Text(" " * _BAR_WIDTH), Text(ABSENT)
    return (
        Text(duration(record.update_time_s)),
        Bar(max(slowest, 1e-9), 0, record.update_time_s, width=_BAR_WIDTH, color="cyan"),
        Text(f"{record.retention:.2f}"),
    )


def _shown_workers(state: RunState, height: int) -> tuple[list[int], list[int]]:
    """Split workers into those listed and the rest; the slowest come first if not all fit."""
    room = max(1, height - _LINES_BESIDES_ROWS)
    workers = sorted(state.workers)
    if len(workers) <= min(_MOST_ROWS, room):
        return workers, []
    workers.sort(key=lambda worker: _update_time(state.workers[worker]), reverse=True)
    count = min(_SLOWEST_ROWS, room)
    return workers[:count], workers[count:]


def _update_time(record: WorkerRecord | None) -> float:
    return 0.0 if record is None else record.update_time_s


def _others_line(state: RunState, others: Sequence[int]) -> Text:
    known = [r for r in (state.workers[worker] for worker in others) if r is not None]
    parts = [f"and {len(others)} faster workers" if known else f"and {len(others)} more workers"]
    if known:
        parts.append(f"update time up to {duration(max(r.update_time_s for r in known))}")
        parts.append(f"retention {span([r.retention for r in known])}")
    parts.append(f"{len(state.arrived & set(others))} arrived")
    return Text(", ".join(parts), style="dim", no_wrap=True, overflow="ellipsis")


def _clock(seconds: float) -> str:
    """`1:05` or `2:03:09`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def in_notebook() -> bool:
    """Whether this code runs in a Jupyter kernel, which shows HTML."""
    ipython = sys.modules.get("IPython")  # a kernel has imported it
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


class NotebookDisplay:
    """Draws into one output of the running cell; a saved notebook holds only the last drawing.

    Rich's display for notebooks needs ipywidgets. This one needs nothing that a kernel lacks.
    """

    def __init__(
        self, render: Callable[[], RenderableType], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._render = render
        self._clock = clock
        self._handle: Any = None
        self._drawn_at = 0.0
        self.lines: deque[Text] = deque(maxlen=_NOTEBOOK_LINES)  # what stays above the drawing

    def refresh(self) -> None:
        """Draw what is to be seen now, unless it was drawn a moment ago."""
        if self._handle is None or self._clock() - self._drawn_at >= _REDRAWN_S:
            self._draw()

    def stop(self) -> None:
        """Draw the last state, which stays."""
        if self._handle is not None:
            self._draw()

    def _draw(self) -> None:
        from IPython.display import display

        self._drawn_at = self._clock()
        shown = _as_bundle(Group(*self.lines, self._render()))
        if self._handle is None:
            self._handle = display(shown, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(shown, raw=True)


def _as_bundle(drawing: RenderableType) -> dict[str, str]:
    """A drawing in the two forms that notebooks choose from."""
    recorder = Console(
        file=StringIO(),
        record=True,
        width=_NOTEBOOK_WIDTH,
        height=_NOTEBOOK_HEIGHT,
        force_terminal=True,
        force_jupyter=False,
        color_system="truecolor",
        legacy_windows=False,
    )
    recorder.print(drawing)
    plain = recorder.export_text(clear=False)
    html = recorder.export_html(inline_styles=True, code_format=_HTML)
    return {"text/html": html, "text/plain": plain}
