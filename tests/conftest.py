"""What holds for all tests."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from adaptcl.cli import main

# How long an example takes says more about how busy the machine is than about the code.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")

Told = tuple[int, str, str]


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
