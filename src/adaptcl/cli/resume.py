"""The command `adaptcl resume`: runs that were cut short, or are to have more rounds, go on."""

from __future__ import annotations

import argparse
import shlex
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from adaptcl import config, report
from adaptcl.cli import compare as comparing
from adaptcl.cli import flags, network
from adaptcl.config import Config
from adaptcl.config.config import FROM_PYTHON
from adaptcl.errors import AdaptCLError, RunFolderError, SettingError
from adaptcl.runs.folder import RunFolder
from adaptcl.runs.folder_reader import NetworkFile, read_marks, read_settings
from adaptcl.runs.identity import refuse_other_settings
from adaptcl.runs.materials import Materials, by_name
from adaptcl.runs.session import run_session, simulated_session


def add_command(commands: Any) -> None:
    """Hang the command into a command line."""
    resume = commands.add_parser(
        "resume",
        help="go on with runs that were interrupted",
        description="Go on with runs that were interrupted. With --rounds, runs go on to more "
        "rounds than they were begun with, finished ones too, and end as if they had had them "
        "from the start.",
    )
    resume.set_defaults(command=_resume)
    resume.add_argument("runs", nargs="+", metavar="RUN", help=comparing.RUN_HELP)
    resume.add_argument(
        "--rounds", type=flags.whole_number, metavar="N", help="go on to so many rounds"
    )


def materials_by_name(chosen: Config) -> Materials:
    """The model and data that the settings name, with a bar while they are read."""
    with report.bar(f"reading {chosen.job.data}") as progress:
        return by_name(chosen.job, progress)


@contextmanager
def resumable(paths: Sequence[Path]) -> Iterator[None]:
    """Say how to go on with those runs that are cut short."""
    try:
        yield
    except (KeyboardInterrupt, BrokenPipeError, SystemExit):
        if left := _unfinished(paths):
            words = f"stopped; `adaptcl resume {shlex.join(map(str, left))}` goes on."
            print(f"adaptcl: {words}", file=sys.stderr, flush=True)
        raise


def _resume(options: argparse.Namespace) -> None:
    paths = comparing.named_runs(options.runs)
    failed: dict[Path, str] = {}
    for together in _jobs(paths):
        try:
            _go_on(together, paths, options.rounds)
        except Exception as error:
            if len(paths) == 1:
                raise
            reason = str(error)
            if not isinstance(error, AdaptCLError):
                # Most likely the user's own model or data: theirs to see in full, but no reason
                # to leave the other runs alone.
                traceback.print_exc()
                reason = f"{type(error).__name__}: {error}"
            failed |= dict.fromkeys(_unfinished(together) or together, reason)
    resumed = [path for path in paths if path not in failed]
    if resumed:
        comparing.present_in_place(resumed)
    if failed:
        reasons = "".join(f"\n{path}: {reason}" for path, reason in failed.items())
        raise RunFolderError(f"{len(failed)} of {len(paths)} runs could not be resumed:{reasons}")


def _jobs(paths: Sequence[Path]) -> list[list[Path]]:
    """The runs one by one, but those together that one server does with the same workers."""
    jobs: dict[str, list[Path]] = {}
    for path in paths:
        name = str(path)
        with suppress(RunFolderError):  # the run's own to complain of, when its turn comes
            name = (NetworkFile.read(path).job if network.is_network_run(path) else "") or name
        jobs.setdefault(name, []).append(path)
    return list(jobs.values())


def _go_on(together: Sequence[Path], paths: Sequence[Path], rounds: int | None) -> None:
    """Resume one job's runs, among all `paths`, unless they are finished."""
    left: dict[Path, dict[str, Any]] = {}
    for path in together:
        is_finished = report.read_run(path).summary is not None
        settings = _settings(path, rounds)
        if is_finished and not _is_to_go_further(path, settings):
            print(f"{path} is finished already.")
        elif FROM_PYTHON in settings.values():
            raise RunFolderError(
                f"{path} was started from Python with its own model or data; go on with it by "
                "adaptcl.run(..., out=..., resume=True)."
            )
        else:
            left[path] = settings
    if left and network.is_network_run(next(iter(left))):
        network.resume(list(left))
        return
    for path, settings in left.items():
        chosen = config.configure(settings)
        materials = materials_by_name(chosen)
        with resumable(paths), report.Progress() as progress:
            run_session(simulated_session(chosen, materials), RunFolder.open(path), [progress])


def _settings(path: Path, rounds: int | None) -> dict[str, Any]:
    """Those of a run, with as many rounds as were asked for."""
    settings = read_settings(path)
    if rounds is None:
        return settings
    before = settings.get("rounds", rounds)
    if rounds < before:
        raise SettingError(
            f"rounds is {rounds}, but {path} was begun with {before}; a run can only be made "
            "longer."
        )
    if rounds > before and network.is_network_run(path):
        raise SettingError(
            f"rounds is {rounds}, but {path} is a run across a network; only simulated runs can be "
            "made longer."
        )
    return {**settings, "rounds": rounds}


def _is_to_go_further(path: Path, settings: dict[str, Any]) -> bool:
    """Whether a finished run is to have more rounds; an error if anything else is to be another."""
    begun = read_marks(path)
    if begun is None:
        return False
    refuse_other_settings(begun["settings"], settings)
    return bool(begun["settings"]["rounds"] < settings["rounds"])


def _unfinished(paths: Sequence[Path]) -> list[Path]:
    return [path for path in paths if not (path / "summary.json").exists()]
