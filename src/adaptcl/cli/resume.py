"""The command `adaptcl resume`: continue interrupted runs, or run more rounds."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from adaptcl.cli import network
from adaptcl.cli.compare import named_runs, picture_options, show_runs_in_place, start_page
from adaptcl.cli.job_commands import (
    load_with_progress,
    named_listeners,
    saying_how_to_resume,
    session_of,
    unfinished,
)
from adaptcl.config.config import FROM_PYTHON, configure
from adaptcl.errors import RunFolderError, SettingError, listed
from adaptcl.events import Listener
from adaptcl.report.progress import Progress, ended_by
from adaptcl.report.saved_run import read_run
from adaptcl.runs.files.run_files import NetworkFile, is_network_run, read_settings
from adaptcl.runs.result import reason_of, show_in_full
from adaptcl.runs.session import Track, is_finished, run_in_folder
from adaptcl.trackers import tracking


def resume_runs(options: argparse.Namespace) -> None:
    paths = named_runs(options.runs)
    pictures = picture_options(options)
    track, listeners = tracking(options.track), named_listeners(options.listener)
    start_page(paths, options)
    failed: dict[Path, str] = {}
    for together in _jobs(paths):
        try:
            _go_on(together, paths, options, track, listeners)
        except Exception as error:
            if len(paths) == 1:
                raise
            show_in_full(error)
            failed |= dict.fromkeys(unfinished(together) or together, reason_of(error))
    resumed = [path for path in paths if path not in failed]
    if resumed:
        show_runs_in_place(resumed, pictures)
    if failed:
        reasons = "".join(f"\n{path}: {reason}" for path, reason in failed.items())
        raise RunFolderError(f"{len(failed)} of {len(paths)} runs could not be resumed:{reasons}")


def _jobs(paths: Sequence[Path]) -> list[list[Path]]:
    """List the runs one by one, but together those that one server runs."""
    jobs: dict[str, list[Path]] = {}
    for path in paths:
        name = str(path)
        with suppress(RunFolderError):  # reported when it is that run's turn
            name = (NetworkFile.read(path).job if is_network_run(path) else "") or name
        jobs.setdefault(name, []).append(path)
    return list(jobs.values())


def _go_on(
    together: Sequence[Path],
    paths: Sequence[Path],
    options: argparse.Namespace,
    track: Track,
    listeners: Sequence[Listener],
) -> None:
    """Continue the runs of one job that are not finished; `paths` are the runs of all jobs."""
    left: dict[Path, dict[str, Any]] = {}
    for path in together:
        summary = read_run(path).summary
        settings = _settings(path, options)
        if summary is not None and is_finished(path, settings):
            print(f"{path} is finished already{ended_by(summary)}.")
        elif FROM_PYTHON in settings.values():
            raise RunFolderError(
                f"{path} was started from Python with its own model or data; continue it with "
                "adaptcl.run(..., out=..., resume=True)."
            )
        else:
            left[path] = settings
    if left and is_network_run(next(iter(left))):
        network.resume_server(list(left), track, listeners, network.changes_of_network(options))
        return
    if left and (changed := network.changes_of_network(options)):
        names = ("address" if name == "listen" else name for name in changed)
        flags = [f"--{name.replace('_', '-')}" for name in names]
        raise SettingError(
            f"{listed(flags)} cannot be changed: {next(iter(left))} is no run across a network."
        )
    for path, settings in left.items():
        chosen = configure(settings)
        workload = load_with_progress(chosen)
        with saying_how_to_resume(paths), Progress() as progress:
            session = session_of(chosen, workload)
            run_in_folder(session, path, [progress, *listeners], track, resume=True)


def _settings(path: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The settings of a run, with those that the command line changes."""
    settings = read_settings(path)
    flags = {name: getattr(options, name) for name in ("rounds", "learning_rate", "clip_norm")}
    changed = {name: value for name, value in flags.items() if value is not None}
    for name, value in changed.items():
        if is_network_run(path) and value != settings.get(name):
            raise SettingError(
                f"{name} is {value:g}, but {path} is a run across a network, whose settings stay "
                "as they are."
            )
    return settings | changed
