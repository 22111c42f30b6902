"""Runs on disk, followed while they go on: each new line of their records is read once."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from adaptcl.errors import RunFolderError
from adaptcl.page.page_data import Values, page_data
from adaptcl.records import RoundRecord
from adaptcl.report.labels import distinct_labels
from adaptcl.report.saved_run import Run, by_strategy, read_run
from adaptcl.runs.run_files import run_folders
from adaptcl.runs.status_file import STATUS, is_alive, read_status

Version = tuple[tuple[str, int, int], ...]
"""Name, size and time of change of each file that the page depends on."""

_FILES = ("config.toml", "rounds.jsonl", "summary.json", STATUS)


@dataclass
class _Known:
    """What has been read of a run so far."""

    run: Run
    offset: int = 0
    records: list[RoundRecord] = field(default_factory=list)


class Followed:
    """Run folders, or folders above them, as they are now."""

    def __init__(self, places: Sequence[Path]) -> None:
        self._places = places
        self._known: dict[Path, _Known] = {}

    def version(self) -> Version:
        """Differs from the last one when there is something new to show."""
        found = []
        for folder in self._folders():
            for name in _FILES:
                path = folder / name
                try:
                    stat = path.stat()
                except OSError:
                    continue
                found.append((str(path), stat.st_size, stat.st_mtime_ns))
            status = read_status(folder)
            if status is not None:
                found.append((f"{folder} alive", int(is_alive(status)), 0))
        return tuple(found)

    def data(self) -> Values:
        """What the page shows now."""
        runs = []
        for folder in self._folders():
            try:
                runs.append(self._read(folder))
            except RunFolderError:
                continue  # a run that is just beginning; the next look finds it
        labelled = distinct_labels(by_strategy(runs))
        return {**page_data(labelled), "live": [_live(run) for run in labelled]}

    def _folders(self) -> list[Path]:
        return [folder for place in self._places for folder in run_folders(place)]

    def _read(self, folder: Path) -> Run:
        path = folder / "rounds.jsonl"
        size = path.stat().st_size if path.is_file() else 0
        known = self._known.get(folder)
        if known is None or size < known.offset:  # a resume drops rounds after its checkpoint
            known = _Known(read_run(folder))
            self._known[folder] = known
        if size > known.offset:
            with path.open("rb") as file:
                file.seek(known.offset)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    known.records.append(RoundRecord.from_json(json.loads(line)))
                    known.offset += len(line)
        summary = known.run.summary
        if summary is None and (folder / "summary.json").exists():
            known.run = read_run(folder)
            summary = known.run.summary
        return replace(known.run, rounds=tuple(known.records), summary=summary)


def _live(run: Run) -> dict[str, Any]:
    """Where a run stands."""
    status = read_status(run.folder)
    done = run.rounds[-1].round if run.rounds else 0
    planned = run.config.get("rounds", 0)
    if run.summary is not None:
        state = "finished"
    elif status is not None and is_alive(status):
        state = "running"
    elif status is None and not run.rounds:
        state = "pending"
    else:
        state = "stopped"
    status = status or {}
    return {
        "label": run.label,
        "state": state,
        "round": done,
        "rounds": status.get("rounds", planned),
        "left_s": _seconds_left(status, done) if state == "running" else None,
        "workers": _states(status.get("workers", [])),
        "resume": shlex.join(["adaptcl", "resume", str(run.folder)]),
    }


def _seconds_left(status: dict[str, Any], done: int) -> float | None:
    """By how long the rounds since the run began or went on have taken."""
    try:
        before = int(status["resumed_after"])
        elapsed = time.time() - float(status["began_s"])
        if done <= before:
            return None
        return elapsed / (done - before) * (int(status["rounds"]) - done)
    except (KeyError, TypeError, ValueError):
        return None


def _states(workers: Sequence[Sequence[Any]]) -> list[list[str]]:
    """Each worker's name and state; of many, how many are in which state."""
    if len(workers) <= 40:
        return [[f"worker {worker}", str(state)] for worker, state in workers]
    counts: dict[str, int] = {}
    for _, state in workers:
        counts[str(state)] = counts.get(str(state), 0) + 1
    return [[str(count), state] for state, count in sorted(counts.items())]
