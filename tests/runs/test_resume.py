"""A run that is interrupted, in whatever way, ends exactly where it would have ended."""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import adaptcl
from adaptcl import data
from adaptcl.cli.main import main
from adaptcl.codecs import CODECS
from adaptcl.events import Event, RoundFinished
from adaptcl.strategies import STRATEGIES

ROUNDS = 8
ANY = [
    "--model", "small", "--data", "digits", "--workers", "3", "--rounds", str(ROUNDS),
    "--epochs", "2", "--jitter", "0.05", "--averaging", "0.4",
]  # fmt: skip
JOB = [*ANY, "--max-importance-lost", "1"]
QUIET = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"}
PATIENCE = 120.0


@contextmanager
def started(*words: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """The command, as a process of its own that does not outlive the block."""
    command = [sys.executable, "-m", "adaptcl.cli.main", *words]
    with subprocess.Popen(
        command, env=QUIET, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def finished(*words: str, **options: Any) -> tuple[int, str]:
    """Exit status and standard error of the command, run to its end."""
    with started(*words, **options) as process:
        _, errors = process.communicate(timeout=PATIENCE)
        return process.returncode, errors.decode()


def rounds_in(folder: Path) -> int:
    path = folder / "rounds.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_for_rounds(folder: Path, count: int, process: subprocess.Popen[bytes]) -> None:
    """Until so many rounds are on record, or the process has ended."""
    limit = time.monotonic() + PATIENCE
    while rounds_in(folder) < count and process.poll() is None:
        assert time.monotonic() < limit
        time.sleep(0.002)


def numbers(folder: Path) -> dict[str, Any]:
    """The figures of a finished run, all but how long it took on this machine."""
    told: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    del told["wall_time_s"]
    return told


def assert_same(folder: Path, reference: Path) -> None:
    """The same figures, the same rounds, and the same model bit for bit; nothing left over."""
    assert numbers(folder) == numbers(reference)
    for name in ("rounds.jsonl", "model.safetensors"):
        assert (folder / name).read_bytes() == (reference / name).read_bytes(), name
    assert {p.name for p in folder.iterdir()} - {"figures", "longer.safetensors"} == {
        ".lock", ".begun-with.json", "config.toml", "rounds.jsonl", "summary.json",
        "model.safetensors", "inputs.json", "sub-models.safetensors",
    }  # fmt: skip


def killed_and_resumed(folder: Path, job: list[str], kills: int, draw: random.Random) -> list[int]:
    """Kill a run again and again, from its start-up on; gives the rounds done at each kill."""
    done = []
    for number in range(kills):
        begun = (folder / "config.toml").exists()
        words = ["resume", str(folder)] if begun else ["run", *job, "--out", str(folder)]
        goal = ROUNDS * number // kills
        with started(*words) as process:
            if goal == 0:
                time.sleep(draw.uniform(0, 2.5))
            wait_for_rounds(folder, goal, process)
            time.sleep(draw.uniform(0, 0.1))
            process.kill()
        done.append(rounds_in(folder))
    return done


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The job, run without interruption."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert finished("run", *JOB, "--out", str(folder)) == (0, "")
    return folder


# Killed ----------------------------------------------------------------------------------------


def test_a_run_killed_at_ten_random_moments_ends_like_one_that_was_not(
    whole: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    done = killed_and_resumed(folder, JOB, 10, random.Random(2))
    assert len(set(done)) > 2, f"the kills hit too few different rounds: {done}"
    assert finished("resume", str(folder)) == (0, "")
    assert_same(folder, whole)


def test_an_asynchronous_run_with_a_codec_that_remembers_survives_being_killed(
    tmp_path: Path,
) -> None:
    job = [*ANY, "--strategy", "fedasync-s", "--codec", "dgc", "--checkpoint-every", "2"]
    assert finished("run", *job, "--out", str(tmp_path / "whole")) == (0, "")
    killed_and_resumed(tmp_path / "run", job, 2, random.Random(3))
    assert finished("resume", str(tmp_path / "run")) == (0, "")
    assert_same(tmp_path / "run", tmp_path / "whole")


# Cut off, quickly ------------------------------------------------------------------------------


class CutOffError(Exception):
    """Ends a run as abruptly as an exception can."""


def cut_off_after(number: int) -> Callable[[Event], None]:
    def listener(event: Event) -> None:
        if isinstance(event, RoundFinished) and event.record.round == number:
            raise CutOffError

    return listener


def clouds(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Points around four centres."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (count,), generator=draw)
    centres = 3 * torch.randn(4, 6, generator=torch.Generator().manual_seed(7))
    return centres[labels] + torch.randn(count, 6, generator=draw), labels


def small_run(
    out: Path, *, cut_off: int | None = None, resume: bool = False, **settings: Any
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4)
    )
    adaptcl.run(
        model, clouds(120, 0), clouds(60, 1), out=out, resume=resume,
        listeners=[cut_off_after(cut_off)] if cut_off else [],
        **{"workers": 4, "rounds": 7, "batch_size": 16, "bandwidth_max": 0.01, "jitter": 0.1,
           "adaptcl": {"max_importance_lost": 1.0}, "trace": "", "averaging": 0.4, **settings},
    )  # fmt: skip


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_goes_on_exactly(tmp_path: Path, strategy: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(
        "time_s,worker,bandwidth,speed,available\n30,0,0.5,1,1\n50,1,1,1,0\n95,1,1,1,1\n"
    )
    settings: dict[str, Any] = {
        "strategy": strategy,
        "codec": "dgc",
        "trace": str(path),
        "checkpoint_every": 2,
    }
    small_run(tmp_path / "whole", **settings)
    for number in (3, 4):
        with pytest.raises(CutOffError):
            small_run(tmp_path / "broken", cut_off=number, resume=number > 3, **settings)
    small_run(tmp_path / "broken", resume=True, **settings)
    assert_same(tmp_path / "broken", tmp_path / "whole")


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("deadline", [0.0, 0.7])
def test_every_codec_and_late_updates_go_on_exactly(
    tmp_path: Path, codec: str, deadline: float
) -> None:
    settings: dict[str, Any] = {
        "strategy": "adaptcl",
        "codec": codec,
        "deadline": deadline,
        "sigma": 4.0,
    }
    small_run(tmp_path / "whole", **settings)
    with pytest.raises(CutOffError):
        small_run(tmp_path / "broken", cut_off=5, **settings)
    small_run(tmp_path / "broken", resume=True, **settings)
    assert_same(tmp_path / "broken", tmp_path / "whole")


def test_a_run_that_was_cut_off_just_before_its_end_needs_no_more_training(tmp_path: Path) -> None:
    small_run(tmp_path / "whole", strategy="adaptcl")
    # As if killed between the last checkpoint and the summary.
    with pytest.raises(CutOffError):
        small_run(tmp_path / "other", strategy="adaptcl", cut_off=7)
    assert not (tmp_path / "other" / "summary.json").exists()
    small_run(tmp_path / "other", strategy="adaptcl", resume=True)
    assert_same(tmp_path / "other", tmp_path / "whole")


# From elsewhere --------------------------------------------------------------------------------


TRACE = "time_s,worker,bandwidth,speed,available\n0,0,0.5,1,1\n"


def test_a_run_with_relative_paths_goes_on_from_any_folder(tmp_path: Path) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    for folder in (here, elsewhere):
        folder.mkdir()
    (here / "trace.csv").write_text(TRACE)
    data.pack(data.load("digits"), here / "my.npz", None)
    job = [*JOB[:2], "--data", "my.npz", "--trace", "trace.csv", *JOB[4:]]
    with started("run", *job, "--out", "run", cwd=here) as process:
        wait_for_rounds(here / "run", 2, process)
        process.kill()
    assert finished("resume", "../here/run", cwd=elsewhere) == (0, "")
    assert numbers(here / "run")["rounds"] == ROUNDS


def test_from_python_too_a_run_goes_on_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("here", "elsewhere"):
        (tmp_path / name).mkdir()
    (tmp_path / "here" / "trace.csv").write_text(TRACE)
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(CutOffError):
        small_run(tmp_path / "run", strategy="fedavg", trace="trace.csv", cut_off=3)
    small_run(tmp_path / "whole", strategy="fedavg", trace="trace.csv")
    monkeypatch.chdir(tmp_path / "elsewhere")
    small_run(tmp_path / "run", strategy="fedavg", trace="../here/trace.csv", resume=True)
    assert_same(tmp_path / "run", tmp_path / "whole")


# Damaged ---------------------------------------------------------------------------------------


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A run by name that was cut off after its third round."""
    folder = tmp_path / "run"
    with started("run", *JOB, "--out", str(folder)) as process:
        wait_for_rounds(folder, 3, process)
        process.kill()
    assert (folder / "checkpoint.safetensors").exists()
    return folder


def flipped(content: bytes, place: int) -> bytes:
    """The content with one bit turned over."""
    changed = bytearray(content)
    changed[place] ^= 1
    return bytes(changed)


def resumed(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    status = main(["resume", str(folder)])
    return status, capsys.readouterr().err


def test_what_is_damaged_is_told_of_in_one_sentence(
    broken: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint, rounds = broken / "checkpoint.safetensors", broken / "rounds.jsonl"
    config = broken / "config.toml"
    good = {path: path.read_bytes() for path in (checkpoint, rounds, config)}
    for path, damage, sentence in (
        (checkpoint, good[checkpoint][:-100], f"{checkpoint} is damaged and cannot be read: "),
        (checkpoint, b"", f"{checkpoint} is damaged and cannot be read: "),
        (checkpoint, b"x" * 5000, f"{checkpoint} is damaged and cannot be read: "),
        (checkpoint, flipped(good[checkpoint], -1000), f"{checkpoint} is damaged and cannot be "
         "read: its checksum is not that of its content; put back a copy of it, or delete it to "
         "begin anew."),
        (rounds, good[rounds].replace(b'"round": 1,', b'"round": 2,', 1), f"{rounds} is damaged: "
         "it does not hold the "),
        (rounds, good[rounds].replace(b"round", b"sound", 1), f"{rounds} is damaged: line 1 is not "
         "a round."),
        (rounds, b"{\n" + good[rounds], f"{rounds} is damaged: line 1 is not JSON."),
        (rounds, good[rounds][:20], f"{rounds} is damaged: it does not hold "),
        (config, b"rounds = ", f"{config} is damaged: Invalid value (at end of document)."),
        (config, good[config].replace(b"rounds", b"sounds"), "There is no setting 'sounds'; did "
         "you mean 'rounds'?"),
    ):  # fmt: skip
        path.write_bytes(damage)
        status, errors = resumed(broken, capsys)
        assert status == 2
        assert errors.startswith(f"adaptcl: {sentence}")
        assert errors.count("\n") == 1
        path.write_bytes(good[path])
    assert resumed(broken, capsys) == (0, "")


def test_only_one_process_at_a_time_goes_on_with_a_run(
    broken: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = rounds_in(broken)
    with started("resume", str(broken)) as process:
        wait_for_rounds(broken, before + 1, process)
        assert process.poll() is None
        status, errors = resumed(broken, capsys)
    assert (status, errors) == (2, f"adaptcl: {broken} is being written by another process.\n")


def limit_files() -> None:
    """Every write beyond 100 kB into one file fails, as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))


def test_a_disk_that_takes_no_more_is_told_of_and_the_run_can_go_on(
    whole: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    status, errors = finished("run", *JOB, "--out", str(folder), preexec_fn=limit_files)
    assert status == 2
    assert errors.startswith(f"adaptcl: {folder / 'checkpoint.safetensors'} cannot be written: ")
    assert "File too large" in errors
    assert errors.count("\n") == 1
    assert not list(folder.glob("*.partial"))
    assert finished("resume", str(folder)) == (0, "")
    assert_same(folder, whole)
