"""The command `adaptcl`.

Flags are made from the declared settings, so every setting has a flag of its name. An error the
user can mend is one sentence on standard error and exit status 2; Ctrl-C says how to go on.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from adaptcl import __version__, config, data, report
from adaptcl.codecs import CODECS
from adaptcl.errors import AdaptCLError, RunFolderError, SettingError
from adaptcl.materials import by_name
from adaptcl.models import MODELS
from adaptcl.pruning import SERVER_ORDERS, WORKER_ORDERS
from adaptcl.run import FROM_PYTHON, execute
from adaptcl.run_folder import RunFolder
from adaptcl.settings import Setting
from adaptcl.strategies import STRATEGIES


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; gives the exit status."""
    signal.signal(signal.SIGTERM, _as_interrupt)
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        options.command(options)
    except AdaptCLError as error:
        print(f"adaptcl: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("adaptcl: interrupted.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 1
    return 0


# Commands --------------------------------------------------------------------------------------


def _run(options: argparse.Namespace) -> None:
    values = _values(options)
    names = values.pop("strategy", "adaptcl")
    configs = [config.configure({**values, "strategy": name}) for name in names.split(",")]
    base = Path(options.out) if options.out else Path("runs") / time.strftime("%Y%m%d-%H%M%S")
    several = len(configs) > 1
    folders = [base / each.job.strategy if several else base for each in configs]
    if len(set(folders)) < len(folders):
        raise SettingError(f"strategy is {names!r}, but it must not name a strategy twice.")
    with report.Progress() as progress:
        for each, path in zip(configs, folders, strict=True):
            materials = by_name(each.job)
            folder = RunFolder.create(path, each.to_toml())
            try:
                execute(each, materials, folder, [progress])
            except KeyboardInterrupt:
                print(f"adaptcl: stopped; `adaptcl resume {path}` goes on.", file=sys.stderr)
                raise
    _present(folders, base / "figures")


def _resume(options: argparse.Namespace) -> None:
    path = Path(options.run)
    before = report.read_run(path)
    if before.summary is not None:
        print(f"{path} is finished already.")
    else:
        if FROM_PYTHON in before.config.values():
            raise RunFolderError(
                f"{path} was started from Python with its own model or data; go on with it by "
                "adaptcl.run(..., out=..., resume=True)."
            )
        chosen = config.configure(tomllib.loads((path / "config.toml").read_text("utf-8")))
        with report.Progress() as progress:
            execute(chosen, by_name(chosen.job), RunFolder.open(path), [progress])
    _present([path], path / "figures")


def _compare(options: argparse.Namespace) -> None:
    paths = [Path(run) for run in options.runs]
    if options.markdown:
        runs = [report.read_run(path) for path in paths]
        print(report.comparison_markdown(runs, over_seeds=options.over_seeds))
        return
    _present(paths, Path(options.out), over_seeds=options.over_seeds)


def _present(paths: Sequence[Path], figures: Path, *, over_seeds: bool = False) -> None:
    """The table of some runs, and where their figures are."""
    runs = [report.read_run(path) for path in paths]
    console = Console()
    console.print(report.comparison(runs, over_seeds=over_seeds))
    drawn = report.draw(runs, figures)
    for path in paths:
        console.print(f"run      {path}", highlight=False, soft_wrap=True)
    console.print(
        f"figures  {figures} ({', '.join(p.name for p in drawn)})",
        highlight=False,
        soft_wrap=True,
    )


def _list(entries: dict[str, str]) -> None:
    width = max(map(len, entries))
    for name, summary in entries.items():
        print(f"{name:<{width}}  {summary}")


def _data_get(options: argparse.Namespace) -> None:
    with _bars() as bars:
        bar = bars.add_task(options.name, total=None)
        path = data.get(
            options.name,
            Path(options.data_dir),
            options.url,
            lambda done, total: bars.update(bar, completed=done, total=total),
        )
    print(f"{options.name} is in {path}.")


def _data_pack(options: argparse.Namespace) -> None:
    source = data.load(options.name, Path(options.data_dir) if options.data_dir else None)
    data.pack(source, Path(options.file))
    print(f"{options.name} is packed in {options.file}.")


# Flags -----------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="adaptcl",
        description="Collaborative learning among unequal machines.",
        epilog="`adaptcl run` alone runs the main job on data that ships with the package.",
    )
    parser.add_argument("--version", action="version", version=f"adaptcl {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="run a job", description="Run a job.")
    run.set_defaults(command=_run)
    run.add_argument("file", nargs="?", help="a TOML file of settings")
    run.add_argument("--preset", help=f"ready-made settings: {', '.join(config.presets())}")
    run.add_argument("--out", help="folder for the run (default: runs/DATE-TIME)")
    settings = run.add_argument_group("settings (keys of the TOML file have the same names)")
    for each in config.all_settings().values():
        _add_flag(settings, each)

    resume = commands.add_parser("resume", help="go on with a run that was interrupted")
    resume.set_defaults(command=_resume)
    resume.add_argument("run", help="the run's folder")

    compare = commands.add_parser("compare", help="table and figures for any set of runs")
    compare.set_defaults(command=_compare)
    compare.add_argument("runs", nargs="+", metavar="RUN", help="a run's folder")
    compare.add_argument("--out", default="figures", help="folder for the figures")
    compare.add_argument("--over-seeds", action="store_true", help="one row for all seeds of a job")
    compare.add_argument("--markdown", action="store_true", help="only the table, as Markdown")

    lists = {
        "strategies": ({n: s.summary for n, s in STRATEGIES.items()}, "methods of learning"),
        "prunings": (
            {n: f"{s.summary} (computed by the server)" for n, s in SERVER_ORDERS.items()}
            | {n: f"{s.summary} (computed by each worker)" for n, s in WORKER_ORDERS.items()},
            "pruning orders",
        ),
        "codecs": ({n: c.summary for n, c in CODECS.items()}, "ways updates travel"),
        "models": ({n: m.summary for n, m in MODELS.items()}, "models by name"),
        "presets": ({n: config.preset_summary(n) for n in config.presets()}, "ready-made settings"),
    }
    for name, (entries, what) in lists.items():
        command = commands.add_parser(name, help=f"list the {what}")
        command.set_defaults(command=lambda _, entries=entries: _list(entries))

    sets = commands.add_parser("data", help="list, fetch and pack data sets")
    sets.set_defaults(command=lambda _: _list({n: s.summary for n, s in data.DATASETS.items()}))
    actions = sets.add_subparsers(title="actions", metavar="ACTION")
    get = actions.add_parser("get", help="fetch a data set")
    get.set_defaults(command=_data_get)
    get.add_argument("name", help="cifar10, cifar100 or tiny-imagenet")
    get.add_argument("--data-dir", required=True, help="folder to put it in")
    get.add_argument("--url", help="another place to fetch the same file from")
    pack = actions.add_parser("pack", help="put a data set into one file")
    pack.set_defaults(command=_data_pack)
    pack.add_argument("name", help="a data set by name, or folder:PATH")
    pack.add_argument("file", help="the file to write")
    pack.add_argument("--data-dir", help="folder that holds the data set")
    return parser


def _add_flag(group: Any, each: Setting) -> None:
    shown = "none" if each.default in ((), "") else each.default
    words = each.words.replace("%", "%%")
    group.add_argument(
        each.flag,
        dest=each.name,
        metavar="X",
        help=f"{each.help} [{words}; {shown}]".replace("%", "%%"),
    )


def _values(options: argparse.Namespace) -> dict[str, Any]:
    """Raw values from the preset, the file and the flags; later ones win."""
    values = config.read_toml(Path(options.file)) if options.file else {}
    if options.preset or not options.file:
        values = {**config.preset(options.preset or config.DEFAULT_PRESET), **values}
    for each in config.all_settings().values():
        text = getattr(options, each.name)
        if text is not None:
            values[each.name] = text if each.name == "strategy" else each.parse(text)
    return values


def _bars() -> Bars:
    return Bars(
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    )


def _as_interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
