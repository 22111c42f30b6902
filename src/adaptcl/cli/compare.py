"""The commands `adaptcl compare`, `report` and `watch`, and the tables of other commands."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from adaptcl.cli import say
from adaptcl.errors import RunFolderError
from adaptcl.page.report import REPORT, write_report, write_reports
from adaptcl.page.watch import Watch
from adaptcl.report.columns import named_columns, paper_columns
from adaptcl.report.comparisons.comparison import Comparison, compare
from adaptcl.report.csv_file import write_comparison
from adaptcl.report.figures.drawing import draw
from adaptcl.report.figures.pictures import PictureOptions
from adaptcl.report.saved_run import Run, by_strategy, read_run
from adaptcl.report.table import comparison_table
from adaptcl.report.verdicts.verdict import verdict
from adaptcl.runs.files.run_files import FIGURES, run_folders
from adaptcl.runs.result import FailedRun

_NAMED_FIGURES = 9  # of a sweep's many figures, so many are named


def compare_runs(options: argparse.Namespace) -> None:
    pictures = picture_options(options)
    comparison = compare(
        _read(named_runs(options.runs)),
        over_seeds=options.over_seeds,
        baseline=options.baseline,
        at_time_s=options.at_time,
        target=options.target_accuracy if options.target is None else options.target,
    )
    if options.csv:
        write_comparison(Path(options.csv), comparison)
    columns = named_columns(comparison, options.columns) if options.columns else []
    if options.latex and not columns:
        columns = paper_columns(comparison)
    table = comparison_table(comparison, columns)
    lines = verdict(comparison).splitlines()
    folder = Path(options.out or FIGURES)
    if options.markdown or options.latex:
        if options.markdown:
            print("\n\n".join([table.markdown(), *lines]))
        else:
            print("\n% ".join([table.latex(), *lines]))
        if pictures.formats and (options.figures or options.out):
            draw(comparison, folder, pictures)
            say(f"figures are in {folder}")
        return
    Console().print(table)
    _print_files(comparison, folder, pictures)
    if options.csv:
        _print("table", options.csv)
    _print_verdict(comparison)


def picture_options(options: argparse.Namespace) -> PictureOptions:
    return PictureOptions.parse(options.figures or "png", titles=options.titles)


def show_runs(paths: Sequence[Path], folder: Path, pictures: PictureOptions) -> None:
    """Print the table of some runs, and draw their figures in this folder."""
    runs = _read(paths)
    _show(compare(runs), {folder: runs}, pictures)


def show_runs_in_place(paths: Sequence[Path], pictures: PictureOptions) -> None:
    """Print the table of some runs, and draw their figures where `adaptcl run` draws them.

    That is beside runs that one command began, and in the folder of any other run.
    """
    runs = _read(paths)
    folders = _folders_above(runs)
    _show(compare(runs, over_seeds=None if len(folders) == 1 else False), folders, pictures)


def _show(
    comparison: Comparison, folders: Mapping[Path, Sequence[Run]], pictures: PictureOptions
) -> None:
    """Print the table of all runs; write figures and report of those that share a folder there."""
    Console().print(comparison_table(comparison))
    for folder, together in folders.items():
        _print_files(compare(together), folder / FIGURES, pictures)
        _print("report", str(write_reports(together, folder)))
    _print_verdict(comparison)


def named_runs(words: Sequence[str]) -> list[Path]:
    """Find the runs in some folders: the folders themselves, or those up to two levels below.

    Each run is listed once. Figures and the report, which `runs/both/*` includes, are skipped. Any
    other place without a run stays in the list, so that reading it raises the error.
    """
    found: list[Path] = []
    others: list[Path] = []
    for path in map(Path, words):
        runs = run_folders(path, levels=2)
        if not runs and path.name in (FIGURES, REPORT) and path.exists():
            others.append(path)
        else:
            found += runs or [path]
    return list({path.resolve(): path for path in reversed(found)}.values())[::-1] or others


def _read(paths: Sequence[Path]) -> list[Run]:
    return by_strategy([read_run(path) for path in paths])


def _folders_above(runs: Sequence[Run]) -> dict[Path, list[Run]]:
    """Group runs that look as if one command began them, by the folder above them.

    Any other run has its own folder.
    """
    folders: dict[Path, list[Run]] = {}
    for run in runs:
        above = run.folder
        # The names that `adaptcl run` gives to folders of several strategies and seeds.
        for name in (run.strategy.replace(":", "."), f"seed-{run.config.get('seed')}"):
            above = above.parent if above.name == name else above
        folders.setdefault(above, []).append(run)
    return {
        above if len(together) > 1 else together[0].folder: together
        for above, together in folders.items()
    }


def _print_files(comparison: Comparison, folder: Path, pictures: PictureOptions) -> None:
    """Draw the figures, and print where runs and figures are."""
    for run in comparison.runs:
        _print("run", str(run.folder))
    if not pictures.formats:
        return
    names = [path.name for path in draw(comparison, folder, pictures)]
    if (more := len(names) - _NAMED_FIGURES) > 1:
        names[_NAMED_FIGURES:] = [f"and {more} more"]
    _print("figures", f"{folder} ({', '.join(names)})")


def _print_verdict(comparison: Comparison) -> None:
    for place, line in enumerate(verdict(comparison).splitlines()):
        _print("" if place else "verdict", line)


def _print(what: str, words: str) -> None:
    Console().print(f"{what:<8} {words}", highlight=False, soft_wrap=True, markup=False)


def show_the_others(
    folders: Sequence[Path],
    failed: Sequence[FailedRun],
    folder: Path,
    pictures: PictureOptions,
    resume: str = "",
) -> None:
    """Print the table of the runs that did not fail; then an error that names the others.

    `resume` is the command that goes on with them; by default it is `adaptcl resume`.
    """
    lost = {each.folder for each in failed}
    if done := [path for path in folders if path not in lost]:
        show_runs(done, folder, pictures)
    if failed:
        named = "".join(f"\n- {each}" for each in failed)
        again = resume or shlex.join(["adaptcl", "resume", *map(str, filter(None, lost))])
        raise RunFolderError(
            f"{len(failed)} of {len(folders)} runs failed:{named}\n`{again}` goes on with them."
        )


def report_runs(options: argparse.Namespace) -> None:
    runs = by_strategy([read_run(path) for path in named_runs(options.runs)])
    write_report(runs, Path(options.out))
    print(f"report   {options.out}")


def watch_runs(options: argparse.Namespace) -> None:
    places = [Path(word) for word in options.runs]
    for place in places:
        if not place.is_dir():
            raise RunFolderError(f"There is no folder {place}.")
    watch = Watch(places, options.host, options.port)
    print(f"watching at {watch.address} (Ctrl-C ends the page, not the runs)", flush=True)
    try:
        watch.serve()
    except KeyboardInterrupt:
        watch.close_at_once()


def start_page(folders: Sequence[Path], options: argparse.Namespace) -> None:
    """If it is asked for, serve the page of some runs from this process, as long as it runs."""
    if not options.watch and options.watch_port is None:
        return
    watch = Watch(folders, port=options.watch_port or 0)
    watch.start()
    say(f"watch it at {watch.address}")
