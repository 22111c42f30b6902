"""The commands that take a job: `adaptcl run`, `forecast` and `describe`."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from adaptcl.cli import doing, say
from adaptcl.cli.compare import picture_options, show_the_others, start_page
from adaptcl.cli.requested_runs import (
    ineffective_settings,
    named_listeners,
    requested_configs,
    requested_runs,
)
from adaptcl.config.config import Config
from adaptcl.events import Listener
from adaptcl.report.progress import Progress, bar
from adaptcl.report.table import forecast_table
from adaptcl.runs.files.folder import RunFolder
from adaptcl.runs.files.run_files import SUMMARY, is_run_folder
from adaptcl.runs.forecast import forecast_workload
from adaptcl.runs.result import FailedRun, noting_failure
from adaptcl.runs.session import Session, run_session
from adaptcl.runs.simulated_session import simulated_session
from adaptcl.runs.workload import Workload, load_workload
from adaptcl.trackers import tracked, tracker_names
from adaptcl.units import describe


def run_job(options: argparse.Namespace) -> None:
    pictures = picture_options(options)
    asked = requested_runs(options, seeds=True)
    trackers, listeners = tracker_names(options.track), named_listeners(options.listen)
    for sentence in asked.ineffective:
        say(sentence)
    load = workload_loader()
    sessions = [session_of(each.with_absolute_paths(), load(each)) for each in asked.configs]
    configs = [each.config for each in sessions]
    for each, path in zip(configs, asked.folders, strict=True):
        RunFolder.create(path, each.to_toml()).close()
    if options.watch:
        start_page(asked.folders)
    failed: list[FailedRun] = []
    with saying_how_to_resume(asked.folders):
        for each, path in zip(configs, asked.folders, strict=True):
            job, alone = each.job, len(configs) == 1
            with (
                noting_failure(job.strategy, job.seed, path, failed, alone=alone) as count_rounds,
                Progress() as progress,
                tracked(trackers, path, each) as tracking,
            ):
                told: list[Listener] = [progress, *tracking, *listeners, count_rounds]
                # A session that is over gives back its memory before the next one begins.
                run_session(sessions.pop(0), RunFolder.open(path), told)
    show_the_others(asked.folders, failed, asked.figures, pictures)


def load_with_progress(chosen: Config) -> Workload:
    """Read the model and the data that the settings name, with a progress bar."""
    with bar(f"reading {chosen.job.data}") as progress:
        return load_workload(chosen.job, progress)


def session_of(config: Config, workload: Workload) -> Session:
    """Put a run together, and say so: tracing and timing a large model takes a while."""
    with doing(f"tracing {config.job.model} and timing its training"):
        return simulated_session(config, workload)


INTERRUPTIONS = (KeyboardInterrupt, BrokenPipeError, SystemExit)


@contextmanager
def saying_how_to_resume(
    paths: Sequence[Path], after: tuple[type[BaseException], ...] = INTERRUPTIONS
) -> Iterator[None]:
    """If the runs are interrupted, print the command that continues those that have begun."""
    try:
        yield
    except after:
        if left := [path for path in unfinished(paths) if is_run_folder(path)]:
            say(f"stopped; `adaptcl resume {shlex.join(map(str, left))}` goes on.")
        raise


def unfinished(paths: Sequence[Path]) -> list[Path]:
    return [path for path in paths if not (path / SUMMARY).exists()]


_NO_PART_OF_THE_WORKLOAD = {
    **{"strategy": "", "codec": "", "rounds": 1, "evaluate_every": 1, "checkpoint_every": 1},
    **{"max_virtual_time": 0.0, "target_accuracy": 0.0, "early_stopping": 0, "averaging": 0.0},
    **{"fresh_statistics": 0, "threads": 0, "precision": "tf32"},
}
"""Settings of a job that change neither its model nor its data."""


def workload_loader() -> Callable[[Config], Workload]:
    """Load the model and the data of a run, unless the run before it had the same."""
    kept: list[tuple[object, Workload]] = []

    def load(config: Config) -> Workload:
        key = dataclasses.replace(config.job, **_NO_PART_OF_THE_WORKLOAD)  # type: ignore[arg-type]
        if not kept or kept[0][0] != key:
            kept[:] = [(key, load_with_progress(config))]
        return kept[0][1]

    return load


def forecast_job(options: argparse.Namespace) -> None:
    configs = requested_configs(options)
    for sentence in ineffective_settings(options, configs):
        say(sentence)
    workload = load_with_progress(configs[0])
    forecasts = []
    for each in configs:
        with doing(f"tracing {each.job.model} and computing the times of {each.job.strategy}"):
            forecasts.append(forecast_workload(each, workload))
    print(f"clock: {forecasts[0].clock}")
    Console().print(forecast_table(forecasts))


def describe_job(options: argparse.Namespace) -> None:
    workload = load_with_progress(requested_configs(options)[0])
    with doing(f"tracing {options.flags.get('model', 'the model')}"):
        found = describe(workload.model, workload.samples_to_trace(), workload.fixed)
    print(found)
