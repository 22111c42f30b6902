"""The command `adaptcl`.

An error the user can mend is one sentence on standard error and exit status 2; Ctrl-C says how to
go on.
"""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from adaptcl import __version__, data, report
from adaptcl.cli import compare as comparing
from adaptcl.cli import flags, network
from adaptcl.cli import listing as lists
from adaptcl.cli import resume as resuming
from adaptcl.cli.resume import materials_by_name, resumable
from adaptcl.config import Config
from adaptcl.engines.forecast import forecast
from adaptcl.errors import AdaptCLError, SettingError
from adaptcl.report.wording import volume
from adaptcl.runs.folder import RunFolder
from adaptcl.runs.materials import Materials
from adaptcl.runs.session import run_session, simulated_session
from adaptcl.units import describe


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; gives the exit status."""
    return answer(_parser, arguments)


def answer(parser: Callable[[], argparse.ArgumentParser], arguments: Sequence[str] | None) -> int:
    """Carry out the command that a command line asks for; gives the exit status."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _as_interrupt)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot write σ gets a ?
    # So that package.module:factory finds a module beside which the command is given.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        options = parser().parse_args(arguments)
        options.command(options)
        sys.stdout.flush()
    except AdaptCLError as error:
        _say(str(error))
        return 2
    except KeyboardInterrupt:
        _say("interrupted.")
        # A training cannot be stopped, and the interpreter would wait for it before it ends.
        os._exit(130)
    except BrokenPipeError:
        # Nobody reads on. The interpreter must not try to write the rest when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


# Commands --------------------------------------------------------------------------------------


def _run(options: argparse.Namespace) -> None:
    asked = flags.asked(options, seeds=True)
    for sentence in asked.idle:
        _say(sentence)
    materials = _materials_by_seed()
    configs = [each.anchored() for each in asked.configs]
    sessions = [simulated_session(each, materials(each)) for each in configs]
    for each, path in zip(configs, asked.folders, strict=True):
        RunFolder.create(path, each.to_toml()).close()
    with resumable(asked.folders):
        for path in asked.folders:
            # A session that is over gives back its memory before the next one begins.
            with report.Progress() as progress:
                run_session(sessions.pop(0), RunFolder.open(path), [progress])
    comparing.present(asked.folders, asked.figures, over_seeds=asked.over_seeds)


def _forecast(options: argparse.Namespace) -> None:
    configs = flags.configurations(options)
    for sentence in flags.without_effect(options, configs):
        _say(sentence)
    materials = materials_by_name(configs[0])
    units = materials.units
    samples = [len(part) for part in materials.parts]
    with report.bar("working out the clock") as progress:
        forecasts = []
        for number, each in enumerate(configs):
            forecasts.append(forecast(each, units, samples))
            progress(number + 1, len(configs))
    Console().print(report.forecast_table(forecasts))


def _describe(options: argparse.Namespace) -> None:
    materials = materials_by_name(flags.configurations(options)[0])
    print(describe(materials.model, materials.example(), materials.fixed))


def _data_get(options: argparse.Namespace) -> None:
    with report.bar(f"fetching {options.name}", in_bytes=True) as progress:
        path = data.get(options.name, Path(options.data_dir), options.url, progress)
    print(f"{options.name} is in {path}.")


def _data_pack(options: argparse.Namespace) -> None:
    quality = _quality(options.quality)
    file = Path(options.file)
    with report.bar(f"reading {options.name}") as progress:
        source = data.load(
            options.name, Path(options.data_dir) if options.data_dir else None, progress
        )
    with report.bar(f"packing {options.name}") as progress:
        data.pack(source, file, quality, progress)
    how = "as PNG, without loss; --quality makes it smaller"
    if quality is not None:
        how = f"as JPEG of quality {quality}, which loses a little of every image"
    print(f"{options.name} is packed in {file} ({volume(file.stat().st_size)}), {how}.")


# Parts of commands -----------------------------------------------------------------------------


def _materials_by_seed() -> Callable[[Config], Materials]:
    """Makes materials for runs that differ in strategy and seed at most: one for each seed."""
    kept: dict[int, Materials] = {}

    def made(chosen: Config) -> Materials:
        if chosen.job.seed not in kept:
            kept[chosen.job.seed] = materials_by_name(chosen)
        return kept[chosen.job.seed]

    return made


def _quality(text: str) -> int | None:
    if text == "lossless":
        return None
    if not text.isdecimal():
        raise SettingError(
            f"quality is {text!r}, but it must be a whole number from 1 to 100, or lossless."
        )
    return int(text)


def _say(line: str) -> None:
    print(f"adaptcl: {line}", file=sys.stderr, flush=True)


def _as_interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


# Flags -----------------------------------------------------------------------------------------


def _parser() -> flags.Parser:
    parser = flags.Parser(
        prog="adaptcl",
        description="Collaborative learning among unequal machines.",
        epilog="`adaptcl run` alone runs the main job on data that ships with the package.",
    )
    parser.add_argument("--version", action="version", version=f"adaptcl {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    run = commands.add_parser(
        "run",
        help="run a job",
        description="Run a job.",
        usage="adaptcl run [FILE] [--preset NAME] [--out DIR] [--SETTING X …]",
    )
    run.set_defaults(command=_run)
    run.add_argument("--out", help="folder for the run (default: runs/DATE-TIME)")
    flags.add_settings(run)

    questions = {
        "forecast": (
            _forecast,
            "say how long a job would take, without training",
            "Work out the virtual clock of a job in seconds, without training anything.",
        ),
        "describe": (
            _describe,
            "say what of a model can be cut, layer by layer",
            "Say which units of a job's model can be cut, and why the others cannot.",
        ),
    }
    for name, (answer, help, description) in questions.items():
        asked = commands.add_parser(
            name,
            help=help,
            description=description,
            usage=f"adaptcl {name} [FILE] [--preset NAME] [--SETTING X …]",
        )
        asked.set_defaults(command=answer)
        flags.add_settings(asked)

    resuming.add_command(commands)
    network.add_commands(commands, comparing.present)

    comparing.add_commands(commands)
    lists.add_commands(commands)

    sets = commands.add_parser("data", help="list, fetch and pack data sets")
    known = {name: each.summary for name, each in data.DATASETS.items()}
    sets.set_defaults(command=lambda _: lists.show(known))
    actions = sets.add_subparsers(title="actions", metavar="ACTION")
    get = actions.add_parser("get", help="fetch a data set")
    get.set_defaults(command=_data_get)
    get.add_argument("name", help="cifar10, cifar100 or tiny-imagenet")
    get.add_argument("--data-dir", required=True, help="folder to put it in")
    get.add_argument("--url", help="another place to fetch the same file from")
    pack = actions.add_parser("pack", help="put a data set into one file")
    pack.set_defaults(command=_data_pack)
    pack.add_argument("name", help="a data set by name, or folder:PATH")
    pack.add_argument("file", help="the .npz file to write")
    pack.add_argument("--data-dir", help="folder that holds the data set")
    pack.add_argument(
        "--quality",
        default="lossless",
        help="lossless, or from 1 to 100 that of JPEGs, which are smaller [%(default)s]",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
