"""The command line as a process: signals, pipes, and being installed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from adaptcl import __version__

SMALL = ["--preset", "default", "--model", "small", "--data", "digits", "--workers", "2"]
QUIET = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"}


def start(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "adaptcl", *words],
        cwd=folder,
        env=QUIET,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.slow
def test_a_signal_ends_a_long_training_at_once_and_says_how_to_resume(tmp_path: Path) -> None:
    # So long a training that nobody could wait for its end.
    words = ["--epochs", "1000", "--strategy", "fedavg,fedavg-s", "--out", "x y"]
    with start(tmp_path, "run", *SMALL, *words) as process:
        limit = time.monotonic() + 60
        while not (tmp_path / "x y" / "fedavg" / "rounds.jsonl").exists():
            assert time.monotonic() < limit
            time.sleep(0.01)
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        before = time.monotonic()
        _, errors = process.communicate(timeout=60)
        assert time.monotonic() - before < 5
    assert process.returncode == 130
    assert errors.decode().splitlines() == [
        "adaptcl: stopped; `adaptcl resume 'x y/fedavg' 'x y/fedavg-s'` goes on.",
        "adaptcl: interrupted.",
    ]


@pytest.mark.parametrize("module", ["adaptcl.cli.parser", "torch"])
def test_ctrl_c_while_a_command_is_imported_is_one_line(module: str, tmp_path: Path) -> None:
    script = f"""
import os, signal, sys
from adaptcl.__main__ import main

def interrupt(event, what):
    if event == "import" and what[0] == {module!r}:
        os.kill(os.getpid(), signal.SIGINT)

sys.addaudithook(interrupt)
sys.exit(main())
"""
    command = [sys.executable, "-c", script, "run"]
    done = subprocess.run(command, cwd=tmp_path, env=QUIET, capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (130, b"adaptcl: interrupted.\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_run_and_its_report_need_none_of_the_extras(tmp_path: Path) -> None:
    extras = ("flwr", "tensorboard", "mlflow", "wandb", "pandas", "IPython", "playwright")
    script = f"""
import sys
sys.modules |= dict.fromkeys({extras!r})
from adaptcl.__main__ import main
sys.exit(main())
"""
    words = [*SMALL, "--rounds", "1", "--out", "x"]
    command = [sys.executable, "-c", script, "run", *words]
    done = subprocess.run(command, cwd=tmp_path, env=QUIET, capture_output=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (tmp_path / "x" / "report.html").exists()
    command += ["--track", "mlflow", "--out", "y"]
    done = subprocess.run(command, cwd=tmp_path, env=QUIET, capture_output=True, timeout=120)
    assert b"pip install 'adaptcl[mlflow]' installs it" in done.stderr


def test_output_into_a_closed_pipe_ends_quietly(tmp_path: Path) -> None:
    with start(tmp_path, "presets") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        errors = process.stderr.read().decode()
    assert (process.returncode, errors) == (1, "")


@pytest.mark.slow
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
        command = [sys.executable, "-m", "adaptcl", *words]
        ascii_only = {**QUIET, "PYTHONIOENCODING": "ascii"}
        told = subprocess.run(
            command, cwd=tmp_path, env=ascii_only, capture_output=True, timeout=60
        )
        assert (told.returncode, told.stderr) == (0, b"")
        assert len(told.stdout) > 100


@pytest.mark.slow
def test_a_locale_without_unicode_can_have_a_folder_with_any_name(tmp_path: Path) -> None:
    words = [*SMALL, "--rounds", "1", "--samples", "60", "--figures", "none", "--out", "dürr"]
    posix = {**QUIET, "LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    del posix["PYTHONIOENCODING"]
    done = subprocess.run(
        [sys.executable, "-m", "adaptcl", "run", *words],
        cwd=tmp_path, env=posix, capture_output=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"run      d??rr\n" in done.stdout
    assert (tmp_path / "dürr" / "summary.json").exists()


def test_the_command_is_installed() -> None:
    script = Path(sys.executable).with_name("adaptcl")
    told = subprocess.run([script, "--version"], capture_output=True, env=QUIET, timeout=60)
    assert told.stdout.decode() == f"adaptcl {__version__}\n"
