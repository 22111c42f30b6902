"""What the page shows of runs, as plain values for JSON, small enough for any run.

Curves keep every round. Of the timeline, which has a bar for each worker and round, a long run
keeps an even choice: its size does not grow with the run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from adaptcl.errors import RunFolderError
from adaptcl.records import RoundRecord
from adaptcl.report.comparison import compare
from adaptcl.report.figures.palette import looks
from adaptcl.report.saved_run import Run
from adaptcl.report.verdict import verdict
from adaptcl.report.worker_timeline import (
    TimelineBar,
    chosen_workers,
    even_choice,
    phase_seconds,
    timeline_bars,
    waiting_share,
)
from adaptcl.runs.run_files import read_delivered

MOST_WORKERS = 40
"""Workers that the page names one by one; of more it shows an even choice from slow to fast."""
MOST_ROUNDS = 300
"""Rounds of the timeline."""
MOST_POINTS = 3000
"""Points of a curve."""

Values = dict[str, Any]
Bars = Sequence[TimelineBar]


def page_data(runs: Sequence[Run]) -> Values:
    """All that the page shows of these runs."""
    colours = [look.colour for look in looks([run.strategy for run in runs])]
    return {
        "runs": [_run(run, colour) for run, colour in zip(runs, colours, strict=True)],
        "verdict": verdict(compare(runs)),
    }


def _run(run: Run, colour: str) -> Values:
    chosen = chosen_workers(run.rounds, MOST_WORKERS)
    bars = timeline_bars(run.rounds)
    summary = run.summary
    return {
        "label": run.label,
        "strategy": run.strategy,
        "colour": colour,
        "clock": run.clock,
        "finished": summary is not None,
        "rounds_planned": run.config.get("rounds"),
        "workers": run.config.get("workers"),
        "model": run.config.get("model"),
        "data": run.config.get("data"),
        "settings": {name: _text(value) for name, value in run.config.items()},
        "folder": run.folder.name,
        "metric": {"label": run.measure.label, "in_percent": run.measure.in_percent},
        "value": _last_value(run.rounds) if summary is None else _known(summary.main_value),
        "time_s": run.rounds[-1].virtual_time_s if run.rounds else 0.0,
        "curves": _curves(run.rounds, bars),
        "phases": _phases(bars, chosen),
        "timeline": _timeline(run.rounds, bars, chosen),
        "widths": _widths(run, chosen),
    }


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _last_value(rounds: Sequence[RoundRecord]) -> float | None:
    tested = [record.main_value for record in rounds if record.main_value is not None]
    return tested[-1] if tested else None


def _known(value: float) -> float | None:
    """JSON has no word for what is no number."""
    return value if math.isfinite(value) else None


def _curves(rounds: Sequence[RoundRecord], bars: Sequence[Bars]) -> Values:
    chosen = even_choice(len(rounds), MOST_POINTS)
    kept = [rounds[place] for place in chosen]
    return {
        "round": [record.round for record in kept],
        "time": [_short(record.virtual_time_s) for record in kept],
        "value": [record.main_value for record in kept],
        "train_loss": [record.train_loss for record in kept],
        "test_loss": [record.test_loss for record in kept],
        "heterogeneity": [record.heterogeneity for record in kept],
        "bytes": [(record.bytes_sent or 0) + (record.bytes_received or 0) for record in kept],
        "waiting": [_short(waiting_share([bars[place]])) for place in chosen],
    }


def _phases(bars: Sequence[Bars], chosen: Sequence[int]) -> Values:
    """Seconds that each worker spent on each phase over the whole run."""
    totals = phase_seconds(bars)
    return {
        "workers": list(chosen),
        "seconds": [[_short(value) for value in totals[worker]] for worker in chosen],
        "waiting": _short(waiting_share(bars)),
        "workers_in_all": len(totals),
    }


def _timeline(rounds: Sequence[RoundRecord], bars: Sequence[Bars], chosen: Sequence[int]) -> Values:
    """Bars: for each worker [round, begin, send, train, receive, retention, waits until]."""
    places = even_choice(len(rounds), MOST_ROUNDS)
    kept = [rounds[place] for place in places]
    of_worker: dict[int, list[list[float]]] = {worker: [] for worker in chosen}
    for place in places:
        for bar in bars[place]:
            if bar.record.worker in of_worker:
                of_worker[bar.record.worker].append(_bar(bar))
    return {
        "workers": list(chosen),
        "bars": list(of_worker.values()),
        "ends": [_short(record.virtual_time_s) for record in kept],
        "rounds": [record.round for record in kept],
    }


def _bar(bar: TimelineBar) -> list[float]:
    each = bar.record
    values = (bar.begin_s, each.send_s, each.train_s, each.receive_s, each.retention, bar.until_s)
    return [bar.round, *map(_short, values)]


def _widths(run: Run, chosen: Sequence[int]) -> Values | None:
    """Units that each worker's sub-model keeps, layer by layer; None before the run is finished."""
    if run.summary is None:
        return None
    try:
        _, _, sub_models = read_delivered(run.folder)
    except (RunFolderError, OSError):
        return None
    layers: dict[str, torch.Tensor] = {}
    seen: set[bytes] = set()
    for slot in sub_models.slots:
        ids = torch.as_tensor(slot.ids)
        units = torch.unique(ids[ids >= 0])
        key = units.numpy().tobytes()
        if slot.owned and slot.dim == 0 and len(units) and key not in seen:
            seen.add(key)
            layers[slot.tensor.removesuffix(".weight")] = units
    workers = [worker for worker in chosen if worker < len(sub_models.of_worker)]
    kept = [sub_models.distinct[sub_models.of_worker[worker]] for worker in workers]
    return {
        "layers": list(layers),
        "whole": [len(units) for units in layers.values()],
        "workers": workers,
        "kept": [[int(each[units].sum()) for units in layers.values()] for each in kept],
    }


def _short(value: float) -> float:
    """Six digits are more than a screen can show."""
    return float(f"{value:.6g}")
