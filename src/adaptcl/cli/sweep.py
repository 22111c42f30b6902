"""The command `adaptcl sweep`: a run for each combination of the listed settings.

Each run has a folder, named by what sets it apart, so the same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from adaptcl.cli import say
from adaptcl.cli.compare import picture_options, show_the_others, start_page
from adaptcl.cli.job_commands import session_of, unfinished, workload_loader
from adaptcl.cli.requested_runs import named_listeners, requested_values
from adaptcl.config.config import Config
from adaptcl.config.grid import expand_grid
from adaptcl.errors import SettingError
from adaptcl.events import Listener
from adaptcl.report.progress import Progress
from adaptcl.runs.files.folder import RunFolder
from adaptcl.runs.files.run_files import FIGURES, is_run_folder, read_finished, read_marks
from adaptcl.runs.result import FailedRun, noting_failure
from adaptcl.runs.resumption import asks_for_more_rounds, refuse_other_settings
from adaptcl.runs.session import run_session
from adaptcl.runs.training_profile import with_profile_of
from adaptcl.runs.workload import Workload
from adaptcl.trackers import tracked, tracker_names


def sweep_settings(options: argparse.Namespace) -> None:
    pictures = picture_options(options)
    trackers, listeners = tracker_names(options.track), named_listeners(options.listen)
    points = expand_grid(requested_values(options))
    stem = Path(options.file).stem if options.file else "sweep"
    base = Path(options.out) if options.out else Path("runs") / stem
    folders = [base / point.name for point in points]
    if len(set(folders)) < len(folders):
        raise SettingError("Two runs of this sweep would have the same folder; shorten the values.")
    again = shlex.join(["adaptcl", "sweep", *filter(None, [options.file]), "--out", str(base)])
    say(f"{len(points)} runs in {base}; `{again}` goes on with them if they are interrupted.")
    if options.watch:
        start_page([base])
    failed: list[FailedRun] = []
    load = workload_loader()
    for place, (point, path) in enumerate(zip(points, folders, strict=True), start=1):
        config, job = point.config.with_absolute_paths(), point.config.job
        config = with_profile_of(path, config) if is_run_folder(path) else config
        alone = len(points) == 1
        with noting_failure(job.strategy, job.seed, path, failed, alone=alone) as count_rounds:
            if _is_done(path, config):
                say(f"{place} of {len(points)}: {path} is finished already")
                continue
            say(f"{place} of {len(points)}: {path}")
            _run(config, path, load(config), trackers, [*listeners, count_rounds])
    show_the_others(folders, failed, base / FIGURES, pictures, again)


def _run(
    config: Config,
    path: Path,
    workload: Workload,
    trackers: Sequence[str],
    listeners: Sequence[Listener],
) -> None:
    session = session_of(config, workload)
    begun = is_run_folder(path)
    folder = RunFolder.open(path) if begun else RunFolder.create(path, session.config.to_toml())
    with Progress() as progress, tracked(trackers, path, session.config) as tracking:
        run_session(session, folder, [progress, *tracking, *listeners])


def _is_done(path: Path, config: Config) -> bool:
    """Whether the run is finished; an error if it was begun with other settings."""
    if not is_run_folder(path) or unfinished([path]) or asks_for_more_rounds(path, config):
        return False
    marks = read_marks(path)
    if marks is not None:
        refuse_other_settings(marks["settings"], json.loads(json.dumps(config.values())))
    return read_finished(path) is not None
