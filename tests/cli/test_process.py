"""The command line as a process: signals, pipes, and being installed."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from adaptcl import __version__
from adaptcl.cli.main import main

SMALL = ["--model", "small", "--data", "digits", "--workers", "2"]
QUIET = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"}


def heed_ctrl_c() -> None:
    """Undo that a process in the background of a shell ignores it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def start(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "adaptcl.cli.main", *words],
        cwd=folder,
        env=QUIET,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=heed_ctrl_c,
    )


def wait_for(path: Path) -> None:
    limit = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < limit
        time.sleep(0.01)


def test_a_signal_ends_a_long_training_at_once(tmp_path: Path) -> None:
    # So long a training that nobody could wait for its end.
    with start(tmp_path, "run", *SMALL, "--epochs", "1000", "--out", "x") as process:
        wait_for(tmp_path / "x" / "rounds.jsonl")
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        before = time.monotonic()
        _, errors = process.communicate(timeout=60)
        assert time.monotonic() - before < 5
    assert process.returncode == 130
    assert errors.decode().splitlines() == [
        "adaptcl: stopped; `adaptcl resume x` goes on.",
        "adaptcl: interrupted.",
    ]


def test_the_command_that_ctrl_c_prints_resumes_all_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--rounds", "9", "--epochs", "0.2", "--strategy", "fedavg,fedavg-s", "--out", "x y"]
    with start(tmp_path, "run", *SMALL, *words) as process:
        wait_for(tmp_path / "x y" / "fedavg" / "checkpoint.safetensors")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    first, last = errors.decode().splitlines()
    assert last == "adaptcl: interrupted."
    assert first == "adaptcl: stopped; `adaptcl resume 'x y/fedavg' 'x y/fedavg-s'` goes on."
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(first.split("`")[1])[1:]) == 0
    for name in ("fedavg", "fedavg-s"):
        assert json.loads((tmp_path / "x y" / name / "summary.json").read_text())["rounds"] == 9
    assert "fedavg-s finished 9 rounds" in capsys.readouterr().out


def test_output_into_a_closed_pipe_ends_quietly(tmp_path: Path) -> None:
    with start(tmp_path, "presets") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        errors = process.stderr.read().decode()
    assert (process.returncode, errors) == (1, "")


def test_a_run_whose_output_nobody_reads_any_more_says_how_to_go_on(tmp_path: Path) -> None:
    words = [*SMALL, "--rounds", "30", "--epochs", "0.1"]
    with start(tmp_path, "run", *words, "--out", "x") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        errors = process.stderr.read().decode()
    assert process.returncode == 1
    assert errors == "adaptcl: stopped; `adaptcl resume x` goes on.\n"


def test_a_terminal_without_unicode_is_written_to_all_the_same(tmp_path: Path) -> None:
    for words in (["run", "--help-all"], ["data"]):
        command = [sys.executable, "-m", "adaptcl.cli.main", *words]
        ascii_only = {**QUIET, "PYTHONIOENCODING": "ascii"}
        told = subprocess.run(
            command, cwd=tmp_path, env=ascii_only, capture_output=True, timeout=60
        )
        assert (told.returncode, told.stderr) == (0, b"")
        assert len(told.stdout) > 100


def test_the_command_is_installed() -> None:
    script = Path(sys.executable).with_name("adaptcl")
    told = subprocess.run([script, "--version"], capture_output=True, env=QUIET, timeout=60)
    assert told.stdout.decode() == f"adaptcl {__version__}\n"
