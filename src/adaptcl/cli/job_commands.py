"""The commands that take a job: `adaptcl run`, `sweep`, `forecast` and `describe`."""

from __future__ import annotations

import argparse
import dataclasses
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from adaptcl.cli import doing, say
from adaptcl.cli.compare import picture_options, show_the_others, start_page
from adaptcl.config.config import Config, all_settings, configure
from adaptcl.config.effects import changed_settings, explain_ineffective
from adaptcl.config.files import over_preset, read_toml
from adaptcl.config.grid import expand_grid, has_several, strategy_names
from adaptcl.custom import custom_function
from adaptcl.errors import SettingError
from adaptcl.events import Listener
from adaptcl.report.progress import Progress, bar
from adaptcl.report.table import forecast_table
from adaptcl.runs.files.folder import RunFolder
from adaptcl.runs.files.run_files import (
    SUMMARY,
    folders_below,
    is_network_run,
    is_run_folder,
    run_folders,
)
from adaptcl.runs.forecast import forecast_workload
from adaptcl.runs.result import FailedRun, noting_failure
from adaptcl.runs.session import Session, is_finished, run_in_folder
from adaptcl.runs.simulated_session import simulated_session
from adaptcl.runs.training_profile import with_profile_of
from adaptcl.runs.workload import Workload, load_workload
from adaptcl.settings import Setting, is_custom
from adaptcl.trackers import tracking
from adaptcl.units import describe


def run_job(options: argparse.Namespace) -> None:
    pictures = picture_options(options)
    asked = requested_runs(options, seeds=True)
    track, listeners = tracking(options.track), named_listeners(options.listener)
    for sentence in asked.ineffective:
        say(sentence)
    load = workload_loader()
    sessions = [session_of(each.with_absolute_paths(), load(each)) for each in asked.configs]
    configs = [each.config for each in sessions]
    for each, path in zip(configs, asked.folders, strict=True):
        RunFolder.create(path, each.to_toml()).close()
    start_page(asked.folders, options)
    failed, said = list[FailedRun](), set[str]()
    with saying_how_to_resume(asked.folders):
        for each, path in zip(configs, asked.folders, strict=True):
            job, alone = each.job, len(configs) == 1
            with (
                noting_failure(job.strategy, job.seed, path, failed, alone=alone) as count_rounds,
                Progress(said=said) as progress,
            ):
                all_listeners: list[Listener] = [progress, *listeners, count_rounds]
                # A session that is over gives back its memory before the next one begins.
                run_in_folder(sessions.pop(0), path, all_listeners, track, resume=True)
    show_the_others(asked.folders, failed, asked.base, pictures)


def sweep_settings(options: argparse.Namespace) -> None:
    """Make a run for each combination of listed settings, in a folder named by what sets it apart.

    So the same command goes on where it stopped.
    """
    pictures = picture_options(options)
    track, listeners = tracking(options.track), named_listeners(options.listener)
    points = expand_grid(requested_values(options))
    if not options.file and not any(point.varied for point in points):
        raise SettingError(
            "A sweep needs a settings file, or a setting with several values, such as --sigma 2,4; "
            "`adaptcl run` makes one run."
        )
    stem = Path(options.file).stem if options.file else "sweep"
    base = Path(options.out) if options.out else Path("runs") / stem
    folders = [base / point.name for point in points]
    if len(set(folders)) < len(folders):
        raise SettingError("Two runs of this sweep would have the same folder; shorten the values.")
    out = [] if options.out else ["--out", str(base)]
    again = shlex.join(["adaptcl", *options.words, *out])
    runs = "1 run" if len(points) == 1 else f"{len(points)} runs"
    say(f"{runs} in {base}; `{again}` goes on if it is interrupted.")
    start_page([base], options)
    failed, said = list[FailedRun](), set[str]()
    load = workload_loader()
    for place, (point, path) in enumerate(zip(points, folders, strict=True), start=1):
        config, job = point.config.with_absolute_paths(), point.config.job
        config = with_profile_of(path, config) if is_run_folder(path) else config
        alone = len(points) == 1
        with noting_failure(job.strategy, job.seed, path, failed, alone=alone) as count_rounds:
            if is_finished(path, config.values()):
                say(f"{place} of {len(points)}: {path} is finished already")
                continue
            say(f"{place} of {len(points)}: {path}")
            session = session_of(config, load(config))
            with Progress(said=said) as progress:
                all_listeners: list[Listener] = [progress, *listeners, count_rounds]
                run_in_folder(session, path, all_listeners, track, resume=True)
    show_the_others(folders, failed, base, pictures, again)


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
    workload = load_with_progress(requested_configs(options)[0], needs_test=False)
    with doing(f"tracing {options.flags.get('model', 'the model')}"):
        found = describe(workload.model, workload.samples_to_trace(), workload.fixed)
    print(found)


# What is asked for -------------------------------------------------------------------------------


@dataclass(frozen=True)
class RequestedRuns:
    """The runs of one command, each in a new folder."""

    configs: list[Config]
    folders: list[Path]  # in the same order as `configs`
    base: Path  # the folder that holds them all
    ineffective: list[str]  # sentences about settings that have no effect in any of these runs


def requested_runs(options: argparse.Namespace, *, seeds: bool = False) -> RequestedRuns:
    """Find what to run and where to put it; raise an error if there is a run already."""
    configs = requested_configs(options, seeds=seeds)
    base = Path(options.out) if options.out else Path("runs") / time.strftime("%Y%m%d-%H%M%S")
    folders = folders_below(base, [(each.job.strategy, each.job.seed) for each in configs])
    for path in folders:
        RunFolder.refuse_unusable(path)
    if len(folders) > 1 and is_run_folder(base):
        RunFolder.refuse_unusable(base)
    return RequestedRuns(configs, folders, base, ineffective_settings(options, configs))


def requested_configs(options: argparse.Namespace, *, seeds: bool = False) -> list[Config]:
    """Make a configuration for each strategy and, if `seeds` allows several, for each seed."""
    values = requested_values(options)
    strategies = strategy_names(values)
    known = all_settings(values)
    _refuse_lists(values, known)
    chosen = values.get("seed", known["seed"].default)
    if not has_several(known["seed"], chosen):
        chosen = [chosen]
    elif not seeds:
        raise SettingError(
            "seed names several seeds; `adaptcl run` and `adaptcl sweep` make a run for each."
        )
    elif len(set(chosen)) < len(chosen):
        raise SettingError("seed names the same seed twice.")
    return [
        configure({**values, "strategy": name, "seed": seed}, known)
        for seed in chosen
        for name in strategies
    ]


def ineffective_settings(options: argparse.Namespace, configs: Sequence[Config]) -> list[str]:
    """Write a sentence for each flag, and each change in the file, that has no effect."""
    in_file = changed_settings(Path(options.file), options.preset) if options.file else []
    return explain_ineffective(dict.fromkeys([*in_file, *options.flags]), configs)


def requested_values(options: argparse.Namespace) -> dict[str, Any]:
    """Gather raw values from the preset, the file and the flags; later ones win."""
    if options.file:
        return read_toml(Path(options.file), options.preset, options.flags)
    return over_preset(options.preset, options.flags)


def _refuse_lists(values: dict[str, Any], known: Mapping[str, Setting]) -> None:
    """Refuse several values where a run has one, and say which command takes them."""
    for name, value in values.items():
        if name in known and name not in ("strategy", "seed") and has_several(known[name], value):
            raise SettingError(
                f"{name} is {value!r}, but a run has one value; `adaptcl sweep` makes a run for "
                "each of several."
            )


def named_listeners(names: str) -> list[Listener]:
    """Import the listeners of a flag, with commas between."""
    found: list[Listener] = []
    for name in filter(None, (each.strip() for each in names.split(","))):
        if not is_custom(name):
            raise SettingError(
                f"--listener is {name!r}, but it must be a function as package.module:function."
            )
        found.append(custom_function(name, "a listener", ("event",), "nothing"))
    return found


# Running it ---------------------------------------------------------------------------------------


def load_with_progress(chosen: Config, *, needs_test: bool = True) -> Workload:
    with bar(f"reading {chosen.job.data}") as progress:
        return load_workload(chosen.job, progress, needs_test=needs_test)


def session_of(config: Config, workload: Workload) -> Session:
    """Put a run together, and say so: tracing and timing a large model takes a while."""
    with doing(f"tracing {config.job.model} and timing its training"):
        return simulated_session(config, workload)


INTERRUPTIONS = (KeyboardInterrupt, BrokenPipeError, SystemExit)


@contextmanager
def saying_how_to_resume(
    paths: Sequence[Path],
    after: tuple[type[BaseException], ...] = INTERRUPTIONS,
    has_begun: Callable[[], bool] = lambda: True,
) -> Iterator[None]:
    """If the runs are interrupted, print the command that resumes those that have begun."""
    try:
        yield
    except after as error:
        if not (has_begun() or isinstance(error, INTERRUPTIONS)):
            raise
        if left := [path for path in unfinished(paths) if is_run_folder(path)]:
            named = _in_short(left, paths)
            say(f"stopped; `adaptcl resume {shlex.join(map(str, named))}` goes on.")
        raise


def _in_short(left: Sequence[Path], paths: Sequence[Path]) -> Sequence[Path]:
    """The folders that are left, or the one above all runs if these are many and all that it holds.

    A server takes its runs in their order, which the folder above does not tell.
    """
    if len(left) <= 2 or is_network_run(left[0]):
        return left
    if len({path.is_absolute() for path in paths}) > 1:
        return left
    above = Path(os.path.commonpath(paths))
    return [above] if {*run_folders(above, levels=2)} == {*paths} else left


def unfinished(paths: Sequence[Path]) -> list[Path]:
    return [path for path in paths if not (path / SUMMARY).exists()]


def workload_loader() -> Callable[[Config], Workload]:
    """Load the model and the data of a run, unless the run before it had the same."""
    kept: list[tuple[object, Workload]] = []

    def load(config: Config) -> Workload:
        # Neither the model nor the data depends on these two, in which runs often differ.
        key = dataclasses.replace(config.job, strategy="", codec="")
        if not kept or kept[0][0] != key:
            kept[:] = [(key, load_with_progress(config))]
        return kept[0][1]

    return load
