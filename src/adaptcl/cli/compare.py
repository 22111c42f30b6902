"""The command `adaptcl compare`, and what every command shows of runs in the end."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from adaptcl.errors import RunFolderError
from adaptcl.report.csv_file import write_comparison
from adaptcl.report.figures import draw
from adaptcl.report.runs import Run, by_strategy, read_run
from adaptcl.report.table import comparison, comparison_markdown
from adaptcl.runs.folder_reader import FIGURES, run_folders

RUN_HELP = "a run's folder, or one that holds those of several, one or two levels below"


def add_commands(commands: Any) -> None:
    """Hang the command into a command line."""
    compare = commands.add_parser(
        "compare",
        help="table and figures for any set of runs",
        description="Table and figures for any set of runs, in the order of `adaptcl strategies`. "
        "A speed-up is relative to the first run of fedavg-s; without one, to the first row.",
    )
    compare.set_defaults(command=_compare)
    compare.add_argument("runs", nargs="+", metavar="RUN", help=RUN_HELP)
    compare.add_argument(
        "--out",
        default=FIGURES,
        help="folder for the figures, in place of those drawn there before [figures]",
    )
    compare.add_argument(
        "--over-seeds",
        action="store_true",
        help="one row and one line for all runs that differ only in their seed",
    )
    compare.add_argument(
        "--target-accuracy",
        type=per_cent,
        metavar="X",
        help="in per cent: a column for the time until this accuracy was first measured",
    )
    compare.add_argument(
        "--csv", metavar="FILE", help="write the table there too, in plain numbers"
    )
    compare.add_argument(
        "--markdown", action="store_true", help="only the table, as Markdown, and no figures"
    )


def _compare(options: argparse.Namespace) -> None:
    runs = _read(named_runs(options.runs))
    asked = {"over_seeds": options.over_seeds, "target_accuracy": options.target_accuracy}
    if options.csv:
        try:
            write_comparison(Path(options.csv), runs, **asked)
        except OSError as error:
            raise RunFolderError(f"{options.csv} cannot be written: {error.strerror}.") from None
    if options.markdown:
        print(comparison_markdown(runs, **asked))
        return
    Console().print(comparison(runs, **asked))
    _say_where(runs)
    _draw(runs, Path(options.out), options.over_seeds)
    if options.csv:
        _say("table", options.csv)


def present(paths: Sequence[Path], figures: Path, *, over_seeds: bool = False) -> None:
    """Show the table of some runs and where they are, and draw their figures."""
    runs = _read(paths)
    Console().print(comparison(runs, over_seeds=over_seeds))
    _say_where(runs)
    _draw(runs, figures, over_seeds)


def present_in_place(paths: Sequence[Path]) -> None:
    """Show the table of some runs, and draw their figures where `adaptcl run` would have.

    That is beside those runs that were begun together, and in the folder of any other run.
    """
    runs = _read(paths)
    places = _places(runs)
    Console().print(comparison(runs, over_seeds=len(places) == 1 and _of_several_seeds(runs)))
    _say_where(runs)
    for place, together in places.items():
        _draw(together, place / FIGURES, _of_several_seeds(together))


def named_runs(words: Sequence[str]) -> list[Path]:
    """The runs that folders stand for: their own, or all those one or two levels below them.

    A run that several words stand for is one run. A folder of figures among them, which
    `runs/both/*` names too, is none. What else is no run stays, for whoever reads it to complain.
    """
    found: list[Path] = []
    others: list[Path] = []
    for path in map(Path, words):
        runs = run_folders(path, levels=2)
        if not runs and path.name == FIGURES and path.is_dir():
            others.append(path)
        else:
            found += runs or [path]
    return list({path.resolve(): path for path in reversed(found)}.values())[::-1] or others


def per_cent(text: str) -> float:
    """The fraction meant by a number of per cent, for argparse."""
    value = float(text)
    if not 1 < value <= 100:
        raise argparse.ArgumentTypeError("it must be in per cent, above 1 and at most 100")
    return value / 100


def _read(paths: Sequence[Path]) -> list[Run]:
    return by_strategy([read_run(path) for path in paths])


def _places(runs: Sequence[Run]) -> dict[Path, list[Run]]:
    """The folder above runs that look as if one command began them, or a run's own."""
    places: dict[Path, list[Run]] = {}
    for run in runs:
        above = run.folder
        # As `adaptcl run` calls the folders of several strategies, seeds, or both.
        for name in (run.strategy.replace(":", "."), f"seed-{run.config.get('seed')}"):
            above = above.parent if above.name == name else above
        places.setdefault(above, []).append(run)
    return {
        above if len(together) > 1 else together[0].folder: together
        for above, together in places.items()
    }


def _of_several_seeds(runs: Sequence[Run]) -> bool:
    return len({run.config.get("seed") for run in runs}) > 1


def _draw(runs: Sequence[Run], folder: Path, over_seeds: bool) -> None:
    """Draw the figures and say where they are, and what else there is, or was."""
    try:
        drawn = draw(runs, folder, over_seeds=over_seeds)
    except OSError as error:
        raise RunFolderError(f"{folder} cannot be written: {error.strerror}.") from None
    _say("figures", f"{folder} ({', '.join(path.name for path in drawn.paths)})")
    if drawn.removed:
        _say("removed", f"{', '.join(drawn.removed)} (drawn there by an earlier comparison)")
    if drawn.others:
        _say("kept", f"{', '.join(drawn.others)} (in {folder}, but not of these runs)")


def _say_where(runs: Sequence[Run]) -> None:
    for run in runs:
        _say("run", str(run.folder))


def _say(what: str, words: str) -> None:
    Console().print(f"{what:<8} {words}", highlight=False, soft_wrap=True, markup=False)
