"""What a run says it is doing; `tests/page/test_watch.py` has those who watch it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from adaptcl.events import PhaseBegan, RunStarted, TaskSent, UpdateArrived, WorkerLost
from adaptcl.runs.files import status_file
from adaptcl.runs.files.status_file import StatusFile, read_status
from adaptcl.training import Timing
from tests.runs.small_runs import CutOffError, cut_off_after, small_run


def until_written(folder: Path) -> None:
    end = time.monotonic() + 10
    while read_status(folder) is None:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_run_that_has_ended_says_nothing_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_file, "_EVERY_S", 0.05)
    status = StatusFile(tmp_path)
    status(RunStarted("fedavg", "net", "digits", 1, 2, 0))
    until_written(tmp_path)
    status(TaskSent(0, 1, 0.0))  # to be written a little later
    status.close()
    time.sleep(0.2)
    assert read_status(tmp_path) is None


def test_a_run_that_fails_says_nothing_any_more(tmp_path: Path) -> None:
    with pytest.raises(CutOffError):
        small_run(tmp_path / "run", listeners=[cut_off_after(1)], rounds=2)
    assert not (tmp_path / "run" / status_file.STATUS).exists()


def said(status: StatusFile, folder: Path) -> list[str]:
    """What each worker does, once all that the run has told is written."""
    with status._changed:
        status._write()
    found = read_status(folder)
    assert found is not None
    return [state for _, state in found["workers"]]


def test_in_a_simulation_workers_do_what_the_virtual_clock_says(tmp_path: Path) -> None:
    status = StatusFile(tmp_path)
    status(RunStarted("fedavg", "net", "digits", 4, 2, 0))
    for worker, phases in enumerate([(1, 2, 1), (2, 9, 1), (5, 9, 1), (1, 2, 9)]):
        status(TaskSent(worker, 1, 100.0, Timing(*phases, begin=100.0)))
    assert said(status, tmp_path) == ["sending"] * 4
    status(UpdateArrived(0, 1, 104.0))
    assert said(status, tmp_path) == ["waiting", "training", "sending", "receiving"]
    status(UpdateArrived(3, 1, 112.0))
    assert said(status, tmp_path) == ["waiting", "receiving", "training", "waiting"]


def test_on_a_network_workers_do_what_the_server_has_seen(tmp_path: Path) -> None:
    status = StatusFile(tmp_path)
    status(RunStarted("fedavg", "net", "digits", 4, 2, 0))
    for worker in range(4):
        status(TaskSent(worker, 1, 0.0))
    status(PhaseBegan(1, "training"))
    status(PhaseBegan(2, "receiving"))
    status(WorkerLost(3, 1, "it is not heard of any more"))
    assert said(status, tmp_path) == ["sending", "training", "receiving", "lost"]
