"""What a run says it is doing; `tests/page/test_watch.py` has those who watch it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from adaptcl.events import RunStarted, TaskSent
from adaptcl.runs import status_file
from adaptcl.runs.status_file import StatusFile, read_status


def test_an_attempt_that_failed_says_nothing_after_the_next_one_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_file, "_EVERY_S", 0.05)
    failed = StatusFile(tmp_path)
    failed(RunStarted("fedavg", "net", "digits", 1, 2, 0))
    failed(TaskSent(0, 1, 0.0))  # to be written a little later
    assert read_status(tmp_path) is not None
    (tmp_path / status_file.STATUS).unlink()  # as the next attempt does at its end
    time.sleep(0.2)
    assert read_status(tmp_path) is None
