"""Runs on disk, followed while they go on: each new line of their records is read once."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import is_not
from pathlib import Path
from typing import Any

from adaptcl.errors import RunFolderError
from adaptcl.page.html import json_text
from adaptcl.page.page_data import RunView, Widths, shown_together
from adaptcl.records import RoundRecord
from adaptcl.report.labels import distinct_labels
from adaptcl.report.saved_run import Run, by_strategy, read_run
from adaptcl.runs.files.run_files import CONFIG, ROUNDS, SUB_MODELS, SUMMARY, run_folders
from adaptcl.runs.files.status_file import STATUS, is_alive, read_status

Version = tuple[tuple[str, int, int], ...]
"""Name, size and time of change of each file that the page depends on."""

_FILES = (CONFIG, ROUNDS, SUB_MODELS, SUMMARY, STATUS)


@dataclass
class _Known:
    """What has been read of a run so far."""

    run: Run
    """With the rounds that it had when it was first read."""
    inode: int
    """Of the file of its rounds."""
    offset: int = 0
    widths: Widths | None = None
    widths_version: Version = ()
    records: list[RoundRecord] = field(default_factory=list)
    view: RunView | None = None
    """What the page shows of it, as long as nothing more is read."""


class FollowedRuns:
    """Run folders, or folders above them, as they are now."""

    def __init__(self, places: Sequence[Path]) -> None:
        self._places = places
        self._known: dict[Path, _Known] = {}
        self._shown: list[RunView] = []
        self._runs: Sequence[Run] = ()
        self._edition = 0
        """Counts the changes of what is shown beside how the runs stand."""
        self.text = json_text(shown_together([], []))
        """All that the page shows beside how the runs stand, as JSON."""
        self.running = 0
        """How many runs go on."""

    def version(self) -> Version:
        """Differs from the last one when there is something new to show."""
        found: list[tuple[str, int, int]] = []
        self.running = 0
        for folder in self._folders():
            found += _version(folder / name for name in _FILES)
            status = read_status(folder)
            if status is not None:
                alive = is_alive(status)
                self.running += alive
                found.append((f"{folder} alive", int(alive), 0))
        return tuple(found)

    def news(self) -> str:
        """How the runs stand, and the number of the `text` that goes with it, as JSON."""
        return json_text({"edition": self._edition, "live": [_live(run) for run in self._runs]})

    def read(self) -> None:
        """Bring `text` up to date; of what has not changed nothing is worked out again."""
        views = {}
        for folder in self._folders():
            try:
                views[folder] = self._view(folder)
            except RunFolderError:
                continue  # a run that is just beginning; the next look finds it
        found = list(views.values())
        if len(found) != len(self._shown) or any(map(is_not, found, self._shown)):
            self._shown, self._edition = found, self._edition + 1
            self._runs = distinct_labels(by_strategy([view.run for view in found]))
            together = shown_together(self._runs, [views[run.folder] for run in self._runs])
            self.text = json_text(together)

    def _folders(self) -> list[Path]:
        return [folder for place in self._places for folder in run_folders(place, levels=2)]

    def _view(self, folder: Path) -> RunView:
        """What the page shows of a run; of its rounds only the new ones are read."""
        path = folder / ROUNDS
        stat = path.stat() if path.is_file() else None
        inode, size = (stat.st_ino, stat.st_size) if stat else (0, 0)
        known = self._known.get(folder)
        # A resume writes the file again, without the rounds after its checkpoint.
        if known is None or inode != known.inode:
            known = self._known[folder] = _Known(read_run(folder), inode)
        if size > known.offset:
            with path.open("rb") as file:
                file.seek(known.offset)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    known.records.append(RoundRecord.from_json(json.loads(line)))
                    known.offset += len(line)
            known.view = None
        version = _version([folder / SUB_MODELS])
        if version != known.widths_version:
            known.widths, known.widths_version = Widths.read(folder), version
            known.view = None
        if known.run.summary is None and (folder / SUMMARY).exists():
            known.run, known.view = read_run(folder), None
        if known.view is None:
            run = replace(known.run, rounds=tuple(known.records))
            known.view = RunView.of(run, known.widths)
        return known.view


def _version(paths: Iterable[Path]) -> Version:
    found = []
    for path in paths:
        with suppress(OSError):  # it is not there
            stat = path.stat()
            found.append((str(path), stat.st_size, stat.st_mtime_ns))
    return tuple(found)


def _live(run: Run) -> dict[str, Any]:
    """Where a run stands. It may be further than it was when it was read."""
    status = read_status(run.folder)
    done = run.rounds[-1].round if run.rounds else 0
    planned = run.config.get("rounds", 0)
    if run.summary is not None or (run.folder / SUMMARY).exists():
        state = "finished"
    elif status is not None and is_alive(status):
        state = "running"
    elif status is None and not run.rounds:
        state = "pending"
    else:
        state = "stopped"
    status = status or {}
    done = max(done, status.get("round", 0))
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
