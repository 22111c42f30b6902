"""A run in its folder: begun there, continued, or finished already."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from adaptcl.config.config import Config
from adaptcl.events import Listener
from adaptcl.runs.files.folder import RunFolder
from adaptcl.runs.files.run_files import is_run_folder, read_marks, read_summary
from adaptcl.runs.result import FinishedRun
from adaptcl.runs.resumption import refuse_other_settings
from adaptcl.runs.session import Session, run_session

Track = Callable[[Path, Config], AbstractContextManager[Sequence[Listener]]]
"""Makes the trackers of a run, given its folder and its settings."""


def is_finished(path: Path, settings: Mapping[str, Any]) -> bool:
    """Whether a run is finished and has all the rounds of these settings.

    It is an error if a finished run was begun with other settings.
    """
    if read_summary(path) is None:
        return False
    begun = read_marks(path)
    if begun is None:
        return True
    refuse_other_settings(begun["settings"], json.loads(json.dumps(dict(settings))))
    return bool(begun["settings"]["rounds"] >= settings["rounds"])


def run_in_folder(
    session: Session, path: Path, listeners: Sequence[Listener], track: Track, *, resume: bool
) -> FinishedRun:
    """Run to the end in a new folder, or with `resume` from where a run in it stopped."""
    with track(path, session.config) as trackers:
        goes_on = resume and is_run_folder(path)
        folder = (
            RunFolder.open(path) if goes_on else RunFolder.create(path, session.config.to_toml())
        )
        return run_session(session, folder, [*listeners, *trackers])
