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
from adaptcl.records import RoundRecord, WorkerRecord
from adaptcl.report.comparison import compare
from adaptcl.report.palette import looks
from adaptcl.report.saved_run import Run
from adaptcl.report.verdict import verdict
from adaptcl.runs.folder import read_delivered

MOST_WORKERS = 40
"""Workers that the page names one by one; of more it shows an even choice from slow to fast."""
MOST_ROUNDS = 300
"""Rounds of the timeline."""
MOST_POINTS = 3000
"""Points of a curve."""

Values = dict[str, Any]


def page_data(runs: Sequence[Run]) -> Values:
    """All that the page shows of these runs."""
    colours = [look.colour for look in looks([run.strategy for run in runs])]
    return {
        "runs": [_run(run, colour) for run, colour in zip(runs, colours, strict=True)],
        "verdict": verdict(compare(runs)),
    }


def _run(run: Run, colour: str) -> Values:
    chosen = _chosen_workers(run.rounds)
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
        "curves": _curves(run.rounds),
        "phases": _phases(run.rounds, chosen),
        "timeline": _timeline(run.rounds, chosen),
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


def _curves(rounds: Sequence[RoundRecord]) -> Values:
    kept = [rounds[place] for place in _even_choice(len(rounds), MOST_POINTS)]
    return {
        "round": [record.round for record in kept],
        "time": [_short(record.virtual_time_s) for record in kept],
        "value": [record.main_value for record in kept],
        "train_loss": [record.train_loss for record in kept],
        "test_loss": [record.test_loss for record in kept],
        "heterogeneity": [record.heterogeneity for record in kept],
        "bytes": [(record.bytes_sent or 0) + (record.bytes_received or 0) for record in kept],
        "waiting": [_short(_waiting_share(*each)) for each in _with_starts(kept, rounds)],
    }


def _with_starts(
    kept: Sequence[RoundRecord], rounds: Sequence[RoundRecord]
) -> list[tuple[float, RoundRecord]]:
    """Each record with the moment its round began."""
    ends = [0.0, *(record.virtual_time_s for record in rounds)]
    begins = {record.round: begin for record, begin in zip(rounds, ends, strict=False)}
    return [(begins[record.round], record) for record in kept]


def _waiting_share(begin: float, record: RoundRecord) -> float:
    """The share of a round in which workers wait, on average over the workers."""
    duration = record.virtual_time_s - begin
    if duration <= 0 or not _has_barrier(begin, record):
        return 0.0
    waits = [duration - worker.update_time_s for worker in record.workers]
    return sum(waits) / len(waits) / duration if waits else 0.0


def _has_barrier(begin: float, record: RoundRecord) -> bool:
    """Whether all of a round's updates fit into it: then whoever is done waits for its end."""
    duration = (record.virtual_time_s - begin) * (1 + 1e-9)
    names = [worker.worker for worker in record.workers]
    return len(set(names)) == len(names) and all(
        worker.update_time_s <= duration for worker in record.workers
    )


def _chosen_workers(rounds: Sequence[RoundRecord]) -> list[int]:
    """Workers to show, by number; of many an even choice by their first update time."""
    first: dict[int, float] = {}
    for record in rounds:
        for worker in record.workers:
            first.setdefault(worker.worker, worker.update_time_s)
    slow_to_fast = sorted(first, key=lambda worker: (-first[worker], worker))
    return sorted(slow_to_fast[place] for place in _even_choice(len(first), MOST_WORKERS))


def _phases(rounds: Sequence[RoundRecord], chosen: Sequence[int]) -> Values:
    """Seconds that each worker spent on each phase over the whole run."""
    totals = {worker: [0.0, 0.0, 0.0, 0.0] for worker in chosen}
    everybody = [0.0, 0.0, 0.0, 0.0]
    for begin, record in _with_starts(rounds, rounds):
        barrier = _has_barrier(begin, record)
        for worker in record.workers:
            wait = record.virtual_time_s - begin - worker.update_time_s if barrier else 0.0
            spent = (worker.send_s, worker.train_s, worker.receive_s, max(0.0, wait))
            for phase, seconds in enumerate(spent):
                everybody[phase] += seconds
                if worker.worker in totals:
                    totals[worker.worker][phase] += seconds
    whole = math.fsum(everybody)
    return {
        "workers": list(chosen),
        "seconds": [[_short(value) for value in totals[worker]] for worker in chosen],
        "waiting": _short(everybody[3] / whole) if whole else 0.0,
        "workers_in_all": len({w.worker for record in rounds for w in record.workers}),
    }


def _timeline(rounds: Sequence[RoundRecord], chosen: Sequence[int]) -> Values:
    """Bars: for each worker [round, begin, send, train, receive, retention, waits until]."""
    places = _even_choice(len(rounds), MOST_ROUNDS)
    bars: dict[int, list[list[float]]] = {worker: [] for worker in chosen}
    busy_until = dict.fromkeys(chosen, 0.0)
    kept = set(places)
    for place, (begin, record) in enumerate(_with_starts(rounds, rounds)):
        barrier = _has_barrier(begin, record)
        for worker in record.workers:
            if worker.worker not in bars:
                continue
            starts = begin if barrier else busy_until[worker.worker]
            ends = starts + worker.update_time_s
            busy_until[worker.worker] = ends
            if place in kept:
                until = record.virtual_time_s if barrier else ends
                bars[worker.worker].append(_bar(record.round, starts, worker, until))
    return {
        "workers": list(chosen),
        "bars": [bars[worker] for worker in chosen],
        "ends": [_short(rounds[place].virtual_time_s) for place in places],
        "rounds": [rounds[place].round for place in places],
    }


def _bar(round_: int, starts: float, worker: WorkerRecord, until: float) -> list[float]:
    spent = (starts, worker.send_s, worker.train_s, worker.receive_s, worker.retention, until)
    return [round_, *map(_short, spent)]


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


def _even_choice(count: int, most: int) -> list[int]:
    """At most so many places out of `count`, evenly spread, the first and the last among them."""
    if count <= most:
        return list(range(count))
    step = (count - 1) / (most - 1)
    return sorted({round(number * step) for number in range(most)})


def _short(value: float) -> float:
    """Six digits are more than a screen can show."""
    return float(f"{value:.6g}")
