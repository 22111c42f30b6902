"""The live page follows runs, and is of no use to strangers."""

from __future__ import annotations

import itertools
import json
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adaptcl.errors import SettingError
from adaptcl.events import RoundFinished, RunStarted
from adaptcl.page.watch import FollowedRuns, Watch
from adaptcl.runs.files.folder import RunFolder
from adaptcl.runs.files.run_files import read_rounds
from adaptcl.runs.files.status_file import StatusFile
from tests.page.conftest import SMALL


@pytest.fixture
def going_on(tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    """A run that will not end by itself while the test looks at it."""
    out = tmp_path / "run"
    words = [*SMALL, "--rounds", "100000", "--evaluate-every", "1000", "--out", str(out)]
    with subprocess.Popen(
        [sys.executable, "-m", "adaptcl", "run", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            until(lambda: (out / "rounds.jsonl").exists())
            yield out, process
        finally:
            process.kill()


def until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.slow
def test_the_page_follows_a_run_that_is_killed_and_resumed(
    browser: Any, going_on: tuple[Path, subprocess.Popen[bytes]]
) -> None:
    out, process = going_on
    watch = Watch([out])
    watch.start()
    opened = browser.new_page()
    opened.goto(watch.address)
    opened.wait_for_selector("[data-state=running] .states span", timeout=10_000)
    doing = opened.locator(".states span").all_inner_texts()
    assert [each.rsplit(" ", 1)[0] for each in doing] == [f"worker {n}" for n in range(4)]
    assert {each.split()[-1] for each in doing} <= {"sending", "training", "receiving", "waiting"}
    assert opened.locator("[data-state=running]").inner_text().startswith("adaptcl: running, round")

    before = len((out / "rounds.jsonl").read_text().splitlines())
    until(lambda: len((out / "rounds.jsonl").read_text().splitlines()) > before)
    seen = f"state.data.runs[0].curves.round.length > {before}"
    opened.wait_for_function(seen, timeout=10_000)

    # Workers prune while one looks, and the table of their widths follows.
    columns = "[...document.querySelectorAll('#widths tr:nth-child(2) td.number')]"
    opened.wait_for_function(f"{columns}.length == 5", timeout=30_000)
    opened.wait_for_function(
        f"new Set({columns}.map((cell) => cell.textContent)).size > 1", timeout=60_000
    )

    process.send_signal(signal.SIGKILL)
    process.wait()
    opened.wait_for_selector("[data-state=stopped]", timeout=10_000)
    assert f"adaptcl resume {out}" in opened.locator("#live").inner_text()

    with subprocess.Popen(
        [sys.executable, "-m", "adaptcl", "resume", str(out)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as resumed:
        try:
            killed_after = opened.evaluate("state.data.runs[0].curves.round.at(-1)")
            opened.wait_for_selector("[data-state=running]", timeout=60_000)
            goes_on = f"state.data.runs[0].curves.round.at(-1) > {killed_after}"
            opened.wait_for_function(goes_on, timeout=60_000)
        finally:
            resumed.kill()
    shown = opened.evaluate("state.data.runs[0].curves.round")
    assert shown == list(range(1, len(shown) + 1))
    opened.close()
    watch.close()


@pytest.mark.slow
def test_ten_runs_that_go_on_at_once_are_seen_within_two_seconds(
    browser: Any, runs: Path, tmp_path: Path
) -> None:
    (*_, record), config = read_rounds(runs / "adaptcl"), (runs / "adaptcl/config.toml").read_text()
    folders = [RunFolder.create(tmp_path / f"run-{number}", config) for number in range(10)]
    writers = [(folder.record, StatusFile(folder.path)) for folder in folders]
    for each in (each for pair in writers for each in pair):
        each(RunStarted("adaptcl", "small", "digits", 4, 1000))
    over = threading.Event()
    written: list[tuple[int, float]] = []

    def write(number: int) -> None:
        event = RoundFinished(replace(record, round=number, virtual_time_s=float(number)))
        for each in (each for pair in writers for each in pair):
            each(event)
        written.append((number, time.monotonic()))

    def go_on() -> None:
        for number in itertools.count(2):
            if over.wait(0.2):
                return
            write(number)

    write(1)
    watch = Watch([tmp_path])
    watch.start()
    opened = browser.new_page()
    running = threading.Thread(target=go_on)
    running.start()
    opened.goto(watch.address)
    opened.wait_for_function("document.querySelectorAll('[data-state=running]').length == 10")
    for _ in range(5):
        number, since = written[-1]
        seen = f"state.data.live.every((run) => run.round >= {number})"
        opened.wait_for_function(seen, timeout=10_000)
        assert time.monotonic() - since < 2
    number, _ = written[-1]
    opened.wait_for_function(f"state.data.runs.every((run) => run.curves.round.length >= {number})")
    over.set()
    running.join()
    opened.close()
    watch.close()
    for folder in folders:
        folder.close()


def test_several_runs_are_followed_at_once_and_nothing_is_written(runs: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in runs.rglob("*")}
    watch = Watch([runs])
    watch.start()
    with urllib.request.urlopen(f"{watch.address}data.json") as answer:
        data = json.load(answer)
    assert [(run["label"], run["state"]) for run in data["live"]] == [
        ("fedavg-s", "finished"),
        ("adaptcl", "finished"),
    ]
    watch.close()
    assert before == {path: path.stat().st_mtime_ns for path in runs.rglob("*")}


def test_a_method_that_counts_rounds_by_its_commits_has_as_many_planned(tmp_path: Path) -> None:
    settings = 'strategy = "dc-asgd-a-s"\nrounds = 2\nepochs = 1.0\ncommit_epochs = 0.5\n'
    RunFolder.create(tmp_path / "run", settings).close()
    followed = FollowedRuns([tmp_path])
    followed.read()
    assert json.loads(followed.news())["live"][0]["rounds"] == 4
    assert json.loads(followed.text)["runs"][0]["rounds_planned"] == 4


def test_a_page_that_others_can_reach_asks_for_a_token(runs: Path) -> None:
    watch = Watch([runs], host="0.0.0.0")
    watch.start()
    local = f"http://127.0.0.1:{watch.port}/data.json"
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(local)
    with urllib.request.urlopen(f"{local}?token={watch.token}") as answer:
        assert answer.status == 200
    watch.close()


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
def test_the_page_listens_at_an_address_of_ipv6_too(runs: Path) -> None:
    watch = Watch([runs], host="::1")
    watch.start()
    assert watch.address == f"http://[::1]:{watch.port}/"
    with urllib.request.urlopen(f"{watch.address}data.json") as answer:
        assert answer.status == 200
    watch.close()


@pytest.mark.parametrize(
    ("host", "port", "sentence"),
    [
        ("127.0.0.1", 70000, "port is 70000, but it must be from 0 to 65535."),
        ("192.0.2.1", 0, "Nothing can listen at 192.0.2.1:0: .*; choose another host or port."),
    ],
)
def test_an_address_where_nothing_can_listen_is_refused(
    tmp_path: Path, host: str, port: int, sentence: str
) -> None:
    with pytest.raises(SettingError, match=sentence):
        Watch([tmp_path], host=host, port=port)


def test_a_foreign_name_for_this_machine_is_refused(runs: Path) -> None:
    watch = Watch([runs])
    watch.start()
    asked = urllib.request.Request(watch.address, headers={"Host": "page.example"})
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(asked)
    watch.close()
