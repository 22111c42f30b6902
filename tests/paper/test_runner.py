"""Runs in processes of their own: side by side, killed, and stopped by the clock."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paper.experiment import Experiment
from paper.provenance import data_sha256, provenance
from paper.reading import parse
from paper.runner import Ended, Limits, Runner
from paper.schedule import Here, missing
from paper.store import Store


@pytest.fixture
def small_text(tiny_text: str) -> str:
    return tiny_text.replace("workers = 4", "workers = 2").replace("rounds = 4", "rounds = 2")


@pytest.fixture
def small(small_text: str) -> Experiment:
    return parse("small", small_text)


def go(experiment: Experiment, folder: Path, limits: Limits, said: list[str]) -> Ended:
    store = Store.open(folder / "results")
    here = Here()
    sources = {"digits": provenance("cpu", "tf32", data_sha256("digits", None))}
    runner = Runner(store, here, limits, folder / "work", sources, said.append)
    return runner.run(missing([experiment], store, here))


def test_missing_runs_are_made_and_a_second_time_none(small: Experiment, tmp_path: Path) -> None:
    said: list[str] = []
    assert go(small, tmp_path, Limits(side_by_side=2), said) == Ended(4, (), 0)
    written = [json.loads(path.read_bytes()) for path in (tmp_path / "results").iterdir()]
    assert sorted((w["settings"]["strategy"], w["settings"]["seed"]) for w in written) == [
        ("adaptcl", 1),
        ("adaptcl", 2),
        ("fedavg-s", 1),
        ("fedavg-s", 2),
    ]
    assert list((tmp_path / "work").iterdir()) == []
    assert sum(line.startswith("begun") for line in said) == 4
    assert go(small, tmp_path, Limits(), said) == Ended(0, (), 0)


def test_a_run_whose_process_dies_takes_no_other_with_it(small: Experiment, tmp_path: Path) -> None:
    said: list[str] = []

    class KillTheFirst(list[str]):
        def append(self, line: str) -> None:
            said.append(line)
            if len(said) == 1:
                (child,) = multiprocessing.active_children()
                child.kill()

    outcome = go(small, tmp_path, Limits(), KillTheFirst())
    assert outcome.done == 3
    assert len(outcome.failed) == 1
    assert any("its process died" in line for line in said)
    assert multiprocessing.active_children() == []


def test_the_time_limit_stops_runs_and_leaves_no_process(small: Experiment, tmp_path: Path) -> None:
    said: list[str] = []
    began = time.monotonic()
    outcome = go(small, tmp_path, Limits(side_by_side=1, seconds=0.5), said)
    assert time.monotonic() - began < 10
    assert outcome == Ended(0, (), 4)
    assert any("stopped by the time limit" in line for line in said)
    assert multiprocessing.active_children() == []
    assert not list((tmp_path / "results").glob("*.json"))


def test_ctrl_c_leaves_no_process(small: Experiment, tmp_path: Path) -> None:
    class Interrupt(list[str]):
        def append(self, line: str) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        go(small, tmp_path, Limits(), Interrupt())
    assert multiprocessing.active_children() == []


def test_a_run_that_cannot_be_made_is_told_with_its_reason(small_text: str, tmp_path: Path) -> None:
    impossible = parse("small", small_text.replace('"small"', '"no.such:model"'))
    said: list[str] = []
    outcome = go(impossible, tmp_path, Limits(), said)
    assert outcome.done == 0
    assert len(outcome.failed) == 4
    assert any("There is no module no.such" in line for line in said)


_SPOILT = """
from pathlib import Path
from adaptcl.models.small import SmallVGG

MARK = Path(__file__).with_name("mark")
first = not MARK.exists()
MARK.touch()


class Spoilt(SmallVGG):
    def train(self, mode=True):
        if first:
            raise MemoryError("the first process has none")
        return super().train(mode)


def net(shape, classes):
    return Spoilt(shape, classes)
"""


def test_what_a_failed_run_leaves_in_its_process_harms_no_other(
    small_text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "spoilt.py").write_text(_SPOILT)
    monkeypatch.syspath_prepend(tmp_path)
    said: list[str] = []
    outcome = go(
        parse("small", small_text.replace('"small"', '"spoilt:net"')), tmp_path, Limits(), said
    )
    assert [line for line in said if "failed" in line and "MemoryError" in line]
    assert (outcome.done, len(outcome.failed)) == (3, 1)


_KILLED = """
import multiprocessing, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_runner import go
from paper.reading import parse
from paper.runner import Limits

class Say(list):
    def append(self, line):
        print(*(child.pid for child in multiprocessing.active_children()), flush=True)

go(parse("small", sys.argv[3]), Path(sys.argv[2]), Limits(), Say())
"""


def test_processes_end_when_their_parent_is_killed(small_text: str, tmp_path: Path) -> None:
    here = str(Path(__file__).parent)
    command = [sys.executable, "-c", _KILLED, here, str(tmp_path), small_text]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        (child,) = (int(word) for word in parent.stdout.readline().split())
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 60
    while _alive(child):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    # One that nobody waits for stays in the table; it is dead all the same.
    return ") Z " not in Path(f"/proc/{process}/stat").read_text()
