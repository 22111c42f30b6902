"""What holds for all tests."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from matplotlib.figure import Figure

from adaptcl.cli import main
from adaptcl.runs import training_profile
from tests import blank_pictures, fixed_profile

# How long an example takes says more about how busy the machine is than about the code.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")

# A shell lets what it starts in the background ignore Ctrl-C, and so would all that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

Figure.savefig = blank_pictures.savefig  # type: ignore[method-assign]
training_profile.measure = fixed_profile.measure

Told = tuple[int, str, str]
SMALL = ["--preset", "default", "--model", "small", "--data", "digits", "--workers", "2",
         "--rounds", "2", "--epochs", "0.2"]  # fmt: skip


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Sums depend on how many threads share them, and trainings of an earlier test, which nobody
    can stop, may have changed their number for the whole process."""
    torch.set_num_threads(1)


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Told]:
    """Runs the command in an empty folder; gives exit status, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("COLUMNS", "80")

    def run(*words: str) -> Told:
        handler = signal.getsignal(signal.SIGTERM)
        try:
            status = main(words)
        finally:
            signal.signal(signal.SIGTERM, handler)
        return status, *capsys.readouterr()

    return run


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with finished runs: fedavg-s and adaptcl, and fedavg-s with another seed."""
    base = tmp_path_factory.mktemp("runs")
    both = ["run", *SMALL, "--strategy", "fedavg-s,adaptcl", "--out", str(base / "both")]
    assert main(both) == 0
    again = ["run", *SMALL, "--strategy", "fedavg-s", "--seed", "2", "--out", str(base / "seed2")]
    assert main(again) == 0
    return base
