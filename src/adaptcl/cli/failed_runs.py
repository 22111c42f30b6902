"""The end of a command of several runs, of which some may have failed."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from adaptcl.cli.compare import show_runs
from adaptcl.errors import RunFolderError
from adaptcl.report.figures import PictureOptions
from adaptcl.runs.result import FailedRun


def show_the_others(
    folders: Sequence[Path],
    failed: Sequence[FailedRun],
    figures: Path,
    pictures: PictureOptions,
    resume: str = "",
) -> None:
    """Print the table of the runs that did not fail; then an error that names the others.

    `resume` is the command that goes on with them; by default it is `adaptcl resume`.
    """
    lost = {each.folder for each in failed}
    if done := [path for path in folders if path not in lost]:
        show_runs(done, figures, pictures)
    if failed:
        named = "".join(f"\n- {each}" for each in failed)
        again = resume or shlex.join(["adaptcl", "resume", *map(str, filter(None, lost))])
        raise RunFolderError(
            f"{len(failed)} of {len(folders)} runs failed:{named}\n`{again}` goes on with them."
        )
