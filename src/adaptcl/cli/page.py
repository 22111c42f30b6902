"""The commands `adaptcl report` and `adaptcl watch`, and the flag --watch of runs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from adaptcl.cli import say
from adaptcl.cli.compare import named_runs
from adaptcl.errors import RunFolderError
from adaptcl.page.html import write_report
from adaptcl.page.page_server import Watch
from adaptcl.report.labels import distinct_labels
from adaptcl.report.saved_run import by_strategy, read_run


def report_runs(options: argparse.Namespace) -> None:
    runs = by_strategy([read_run(path) for path in named_runs(options.runs)])
    try:
        write_report(distinct_labels(runs), Path(options.out))
    except OSError as error:
        raise RunFolderError(f"{options.out} cannot be written: {error.strerror}.") from None
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


def start_page(folders: Sequence[Path]) -> None:
    """Serve the page of some runs from this process, as long as it runs."""
    watch = Watch(folders)
    watch.start()
    say(f"watch it at {watch.address}")
