"""What it costs to be able to see a run: what it writes on the way, its page and its report.

The difference of two runs would be lost in noise. So one run is made, and each part is timed in it
by the processor time of its thread: a second status file, and what the page's server does for one
browser. The report is written at the end, and the sub-models as often as the run has written them.
"""

from __future__ import annotations

import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path

import adaptcl
from adaptcl import models
from adaptcl.events import Event
from adaptcl.page.report import REPORT, write_report
from adaptcl.page.watch import LOOK_EVERY_S, FollowedRuns, View
from adaptcl.report.saved_run import read_run
from adaptcl.runs.files.run_files import SUB_MODELS
from adaptcl.runs.files.status_file import StatusFile
from adaptcl.storage import save
from benchmarks.benchmark import Bar, BenchmarkReport, Measurement, Request
from benchmarks.subjects import SHAPES, made_up

_BAR = Bar(0.01)
_ROUNDS = 20
_WORKERS = 10
_IMAGES = 640
"""Images of each worker."""


def measure(request: Request) -> BenchmarkReport:
    """Make one run and time the parts in it."""
    rounds = request.rounds or _ROUNDS
    with tempfile.TemporaryDirectory() as place:
        folder, beside = Path(place) / "run", Path(place) / "beside"
        beside.mkdir()
        status, browser = _TimedStatusFile(beside), _Browser(folder)
        browser.start()
        began, wall = time.process_time(), time.perf_counter()
        result = _run(folder, rounds, status, request.device)
        whole, wall = time.process_time() - began, time.perf_counter() - wall
        browser.stop()
        began = time.process_time()
        write_report([read_run(folder)], folder / REPORT)
        report = time.process_time() - began
        began = time.process_time()
        writes = _changes_of_widths(result)
        for _ in range(writes):
            save(beside / SUB_MODELS, result.sub_models.to_tree())
        widths = time.process_time() - began
    run = whole - status.seconds - browser.seconds
    parts = {
        "status file": status.seconds,
        f"sub-models, written {writes} times": widths,
        f"page, one browser, {browser.changes} changes": browser.seconds,
        "report.html": report,
    }
    always = status.seconds + widths + report
    rows = [
        *(Measurement(label, seconds / run, seconds) for label, seconds in parts.items()),
        Measurement("together, no page open", always / run, always, _BAR),
        Measurement("together", (always + browser.seconds) / run, always + browser.seconds, _BAR),
    ]
    return BenchmarkReport(
        f"Watching a run of {rounds} rounds, {_WORKERS} workers, the small net",
        "of the run",
        tuple(rows),
        "processor time of each part and of the rest of the same run",
        ("The page costs by the second, so more of a run that a busy machine slows down.",),
        {"run_s": run, "wall_s": wall, "parts_s": parts},
    )


def _changes_of_widths(result: adaptcl.Result) -> int:
    retentions = [{w.worker: w.retention for w in record.workers} for record in result.rounds]
    return 1 + sum(now != before for before, now in pairwise(retentions))


def _run(folder: Path, rounds: int, status: StatusFile, device: str) -> adaptcl.Result:
    shape = SHAPES["small"]
    return adaptcl.run(
        models.build("small", shape, 10, seed=1),
        made_up(shape, _WORKERS * _IMAGES, seed=0),
        made_up(shape, 500, seed=1),
        out=folder,
        figures="none",
        train_time=1.0,  # given, so that it is not measured
        strategy="adaptcl",
        workers=_WORKERS,
        rounds=rounds,
        epochs=1,
        batch_size=64,
        device=device,
        listeners=status,
    )


class _TimedStatusFile(StatusFile):
    """A status file that adds up its processor time, also that of its thread."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.seconds = 0.0

    def __call__(self, event: Event) -> None:
        began = time.thread_time()
        super().__call__(event)
        self.seconds += time.thread_time() - began

    def _write(self) -> None:
        began = time.thread_time()
        super()._write()
        self.seconds += time.thread_time() - began


class _Browser:
    """A thread that does what the page's server does while one browser looks at a run."""

    def __init__(self, folder: Path) -> None:
        self.seconds = 0.0
        self.changes = 0
        self._view = View(FollowedRuns([folder]))
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="browser", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        seen = ""
        while True:
            news = self._view.news()
            if news != seen:
                seen = news
                self.changes += 1
            self.seconds = time.thread_time()
            if self._over.wait(LOOK_EVERY_S):
                return
