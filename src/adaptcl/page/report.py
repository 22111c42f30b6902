"""The page of some runs as one HTML file. It opens offline, asks no other host and can be mailed.

What it shows is small enough for any run: curves keep every round up to some thousands. Of the
timeline, which has a bar for each worker and round, a long run's rounds are added up in blocks.

Curves are drawn by uPlot (50 kB, MIT licence), which zooms and toggles tens of thousands of points
without a build step. It and our own script and style are written into the file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from adaptcl.config.config import FROM_PYTHON
from adaptcl.errors import RunFolderError
from adaptcl.records import TESTS, RoundRecord, end_s
from adaptcl.report.comparisons.comparison import compare
from adaptcl.report.comparisons.groups import alike_runs
from adaptcl.report.comparisons.labels import distinct_labels
from adaptcl.report.comparisons.learning_curve import learning_curve, tests_of
from adaptcl.report.figures.palette import looks
from adaptcl.report.figures.timeline import (
    TimelineBar,
    chosen_workers,
    done_share,
    even_choice,
    timeline_bars,
    waiting_share,
)
from adaptcl.report.saved_run import Run
from adaptcl.report.verdicts.verdict import advice, findings
from adaptcl.runs.files.run_files import CONFIG, read_sub_models
from adaptcl.storage import written_whole
from adaptcl.strategies.dc_asgd import planned_rounds

REPORT = "report.html"

MOST_WORKERS = 40
"""Workers that the page names; of more it shows an even choice from slow to fast."""
MOST_BLOCKS = 300
"""Bars of a worker in the timeline; if a run has more rounds, each bar adds up several."""
MOST_POINTS = 3000
"""Points of a curve."""
FIRST_ROUNDS = 3
"""How long the shown beginning and end are: as long as these rounds of the slowest run."""
FIRST_WORKERS = 10
"""Workers in the shown beginning and end."""

Values = dict[str, Any]
Bars = Sequence[TimelineBar]


def write_report(runs: Sequence[Run], path: Path) -> None:
    """Write a page about these runs; the same runs give the same bytes."""
    with written_whole(path) as file:
        file.write(page(json_text(page_data(runs))).encode("utf-8"))


def write_reports(runs: Sequence[Run], folder: Path) -> Path:
    """Write the page of each run into its folder, and one about all runs into `folder`."""
    for run in runs:
        write_report([run], run.folder / REPORT)
    if len(runs) == 1:
        return runs[0].folder / REPORT
    write_report(runs, folder / REPORT)
    return folder / REPORT


def json_text(data: Values) -> str:
    return json.dumps(data, separators=(",", ":"), allow_nan=False)


def page(data: str) -> str:
    # No text in a run may close the script element that holds it.
    content = data.replace("<", "\\u003c")
    parts = {
        "/*STYLE*/": _asset("uPlot.min.css") + _asset("page.css"),
        "/*UPLOT*/": _asset("uPlot.iife.min.js"),
        "/*SCRIPT*/": _asset("page.js"),
        "/*DATA*/": content,
    }
    text = _asset("page.html")
    for mark, part in parts.items():
        before, after = text.split(mark)
        text = before + part + after
    return text


def _asset(name: str) -> str:
    return (resources.files("adaptcl.page") / "assets" / name).read_text(encoding="utf-8")


# What it shows ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunView:
    """What the page shows of one run, whatever other runs it is shown with."""

    run: Run
    values: Values
    bars: Sequence[Bars]
    """The timeline, round by round."""

    @classmethod
    def of(cls, run: Run, widths: Widths | None) -> RunView:
        """Of a long run this takes most of the page's time."""
        bars = timeline_bars(run.rounds)
        return cls(run, _run(run, bars, widths), bars)


@dataclass(frozen=True)
class Widths:
    """How many units the workers' sub-models keep, layer by layer."""

    layers: Sequence[str]
    whole: Sequence[int]
    distinct: Sequence[Sequence[int]]
    """One list of widths for each different sub-model."""
    of_worker: Sequence[int]
    """For each worker, the index of its sub-model in `distinct`."""

    @classmethod
    def read(cls, folder: Path) -> Widths | None:
        """None before the first round of a run has ended."""
        try:
            sub_models = read_sub_models(folder)
        except RunFolderError:
            return None
        layers = sub_models.layers
        whole = list(layers.values())
        each = [
            [int(part.sum()) for part in kept.split_with_sizes(whole)]
            for kept in sub_models.distinct
        ]
        return cls(list(layers), whole, each, sub_models.of_worker)

    def of(self, chosen: Sequence[int]) -> Values:
        """The widths of some workers."""
        workers = [worker for worker in chosen if worker < len(self.of_worker)]
        return {
            "layers": self.layers,
            "whole": self.whole,
            "workers": workers,
            "kept": [self.distinct[self.of_worker[worker]] for worker in workers],
        }


def page_data(runs: Sequence[Run]) -> Values:
    views = [RunView.of(run, Widths.read(run.folder)) for run in runs]
    return shown_together(distinct_labels(runs), views)


def shown_together(runs: Sequence[Run], views: Sequence[RunView]) -> Values:
    """All that the page shows of these runs, which now have different labels.

    Runs that differ only in their seed are one method, with one colour and one line.
    """
    comparison = compare([view.run for view in views])
    methods = [run.label for run in runs]
    if comparison.over_seeds:
        together = alike_runs([view.run for view in views])
        first = distinct_labels([each[0] for each in together])
        method_of = {
            run.folder: named.label
            for named, each in zip(first, together, strict=True)
            for run in each
        }
        methods = [method_of[run.folder] for run in runs]
    strategies = {method: run.strategy for method, run in zip(methods, runs, strict=True)}
    colours = dict(zip(strategies, looks(list(strategies.values())), strict=True))
    length = max((end_s(run.rounds[:FIRST_ROUNDS]) for run in runs), default=0.0)
    return {
        "runs": [
            {
                **view.values,
                "label": run.label,
                "method": method,
                "colour": colours[method].colour,
                "ends": _ends(view, length),
            }
            for run, view, method in zip(runs, views, methods, strict=True)
        ],
        "verdict": findings(comparison),
        "advice": advice(comparison),
    }


def _run(run: Run, bars: Sequence[Bars], widths: Widths | None) -> Values:
    chosen = chosen_workers(run.rounds, MOST_WORKERS)
    summary = run.summary
    half = sum(record.virtual_time_s <= end_s(run.rounds) / 2 for record in run.rounds)
    return {
        "strategy": run.strategy,
        "clock": run.clock,
        "finished": summary is not None,
        "rounds": run.rounds[-1].round if run.rounds else 0,
        "rounds_planned": planned_rounds(run.config),
        "pruning": run.prunes + run.adapts,
        "workers": run.config.get("workers"),
        "workers_seen": len({each.worker for record in run.rounds for each in record.workers}),
        "model": run.config.get("model"),
        "data": run.config.get("data"),
        "settings": {name: _text(value) for name, value in run.config.items()},
        "toml": _settings_file(run),
        "folder": run.folder.name,
        "metric": {"label": run.measure.label, "in_percent": run.measure.in_percent},
        "value": learning_curve(run.rounds, run.measure).last,
        "tests": min(len(tests_of(run.rounds)), TESTS),
        "time_s": end_s(run.rounds),
        "waiting": [_short(waiting_share(each)) for each in (bars, bars[:half], bars[half:])],
        "done": _short(done_share(run, bars)),
        "curves": _curves(run.rounds, bars),
        "timeline": _timeline(run.rounds, bars, chosen),
        "widths": widths and widths.of(chosen),
    }


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _settings_file(run: Run) -> str | None:
    """The file to run it again with; None if the model or the data came from Python."""
    try:
        text = (run.folder / CONFIG).read_text(encoding="utf-8")
    except OSError:
        return None
    return None if FROM_PYTHON in text else text


def _curves(rounds: Sequence[RoundRecord], bars: Sequence[Bars]) -> Values:
    chosen = even_choice(len(rounds), MOST_POINTS)
    kept = [rounds[place] for place in chosen]
    return {
        "round": [record.round for record in kept],
        "time": [_short(record.virtual_time_s) for record in kept],
        "value": [record.main_value for record in kept],
        "heterogeneity": [record.heterogeneity for record in kept],
        "bytes": [(record.bytes_sent or 0) + (record.bytes_received or 0) for record in kept],
        "waiting": [_short(waiting_share([bars[place]])) for place in chosen],
    }


def _timeline(rounds: Sequence[RoundRecord], bars: Sequence[Bars], chosen: Sequence[int]) -> Values:
    """Blocks of rounds: for each worker what `_block` makes of them."""
    size = max(1, math.ceil(len(rounds) / MOST_BLOCKS))
    starts = range(0, len(rounds), size)
    blocks = [_by_worker(bars[start : start + size], chosen) for start in starts]
    return {
        "workers": list(chosen),
        "bars": [[_block(block[worker]) for block in blocks if block[worker]] for worker in chosen],
        "ends": [_short(each.virtual_time_s) for each in rounds[size - 1 :: size]],
    }


def _ends(view: RunView, length: float) -> Values:
    """Every bar in the first seconds of a run and in its last."""
    rounds, end = view.run.rounds, end_s(view.run.rounds)
    workers = chosen_workers(rounds, FIRST_WORKERS)
    timed = list(zip(view.bars, rounds, strict=True))
    parts = {
        "first": [bars for bars, _ in timed if _begins(bars) < length],
        "last": [bars for bars, record in timed if record.virtual_time_s > end - length],
    }
    return {"length": _short(length), "workers": workers} | {
        name: [[_block([bar]) for bar in each] for each in _by_worker(part, workers).values()]
        for name, part in parts.items()
    }


def _begins(bars: Bars) -> float:
    return min((bar.begin_s for bar in bars), default=math.inf)


def _by_worker(bars: Iterable[Bars], workers: Sequence[int]) -> dict[int, list[TimelineBar]]:
    found: dict[int, list[TimelineBar]] = {worker: [] for worker in workers}
    for each in bars:
        for bar in each:
            if bar.record.worker in found:
                found[bar.record.worker].append(bar)
    return found


def _block(bars: Bars) -> list[float]:
    """First and last round, beginning, seconds of each phase, retention in the end."""
    phases = map(sum, zip(*(bar.seconds for bar in bars), strict=True))
    values = (bars[0].begin_s, *phases, bars[-1].record.retention)
    return [bars[0].round, bars[-1].round, *map(_short, values)]


def _short(value: float) -> float:
    """Six digits are more than a screen can show."""
    return float(f"{value:.6g}")
