"""A run that is interrupted, in whatever way, ends exactly where it would have ended."""

from __future__ import annotations

import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from adaptcl import data
from adaptcl.cli import main
from adaptcl.strategies import STRATEGIES
from tests.processes import PATIENCE_S, command, finished, started
from tests.runs.small_runs import CutOffError, assert_same, cut_off_after, figures, small_run

KILLED = -signal.SIGKILL
ROUNDS = 6
JOB = [
    "--model", "small", "--data", "digits", "--samples", "300", "--workers", "3",
    "--rounds", str(ROUNDS), "--epochs", "1", "--jitter", "0.05", "--averaging", "0.4",
]  # fmt: skip
PRUNING = [
    *(*JOB, "--strategy", "adaptcl", "--pruning-interval", "2", "--max-importance-lost", "1")
]


def rounds_in(folder: Path) -> int:
    path = folder / "rounds.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def killed_in_round(words: tuple[str, ...], folder: Path, number: int, delay: float) -> None:
    """Kill the command some time after so many rounds are on record."""
    with started(command, words, "/dev/null", None, None, None) as process:
        limit = time.monotonic() + PATIENCE_S
        while rounds_in(folder) < number and process.is_alive():
            assert time.monotonic() < limit
            time.sleep(0.002)
        time.sleep(delay)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The job, run without interruption."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert main(["run", *PRUNING, "--out", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The job, killed after its third round; not to be changed."""
    folder = tmp_path_factory.mktemp("begun") / "run"
    words = ("run", *PRUNING, "--out", str(folder))
    assert finished(*words, killed_at_write=("checkpoint.safetensors", 3))[0] == KILLED
    return folder


@pytest.fixture
def broken(begun: Path, tmp_path: Path) -> Path:
    """A copy of the run that was killed."""
    return Path(shutil.copytree(begun, tmp_path / "run"))


# Killed ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_killed_again_and_again_ends_like_one_that_was_not(
    whole: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    begin, go_on = ("run", *PRUNING, "--out", str(folder)), ("resume", str(folder))
    # What is killed just before the configuration is there is no run yet. Later a run writes its
    # marks, what its model takes and the rounds so far. Then it writes every round, its model if
    # that is the best so far, the sub-models if they have changed, and the checkpoint.
    for name, number, rounds in (
        ("config.toml", 1, 0),
        (".begun-with.json", 1, 0),
        ("best.safetensors", 1, 1),
        ("sub-models.safetensors", 1, 1),
        ("checkpoint.safetensors", 1, 1),
        ("rounds.jsonl", 3, 2),
        ("inputs.json", 1, 2),
        ("best.safetensors", 2, 3),
    ):
        words = go_on if (folder / "config.toml").exists() else begin
        assert finished(*words, killed_at_write=(name, number))[0] == KILLED
        assert rounds_in(folder) == rounds
    draw = random.Random(2)
    for number in (4, 5):
        killed_in_round(go_on, folder, number, draw.uniform(0, 0.1))
    assert finished(*go_on) == (0, "")
    assert_same(folder, whole)


@pytest.mark.slow
def test_a_run_killed_while_it_writes_what_it_ends_with_ends_all_the_same(
    whole: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    words: tuple[str, ...] = ("run", *PRUNING, "--out", str(folder))
    for name in ("model.safetensors", "summary.json"):
        assert finished(*words, killed_at_write=(name, 1))[0] == KILLED
        assert not (folder / "summary.json").exists()
        words = ("resume", str(folder))
    assert finished(*words) == (0, "")
    assert_same(folder, whole)


# Cut off, quickly --------------------------------------------------------------------------------


TRACE = "time_s,worker,bandwidth,speed,available\n"


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_goes_on_exactly(tmp_path: Path, strategy: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(f"{TRACE}30,0,0.5,1,1\n50,1,1,1,0\n95,1,1,1,1\n")
    settings: dict[str, Any] = {
        **{"strategy": strategy, "codec": "dgc", "trace": str(path), "rounds": 7},
        "checkpoint_every": 2,
    }
    small_run(tmp_path / "whole", **settings)
    for number in (3, 4):
        with pytest.raises(CutOffError):
            small_run(
                tmp_path / "broken", listeners=[cut_off_after(number)], resume=True, **settings
            )
    small_run(tmp_path / "broken", resume=True, **settings)
    assert_same(tmp_path / "broken", tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["int8", "dgc"])
def test_codecs_and_late_updates_go_on_exactly(tmp_path: Path, codec: str) -> None:
    settings: dict[str, Any] = {
        **{"strategy": "adaptcl", "codec": codec, "deadline": 0.7, "sigma": 4.0, "rounds": 7}
    }
    small_run(tmp_path / "whole", **settings)
    with pytest.raises(CutOffError):
        small_run(tmp_path / "broken", listeners=[cut_off_after(5)], **settings)
    small_run(tmp_path / "broken", resume=True, **settings)
    assert_same(tmp_path / "broken", tmp_path / "whole")


# From elsewhere ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_with_relative_paths_goes_on_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    for folder in (here, elsewhere):
        folder.mkdir()
    (here / "trace.csv").write_text(f"{TRACE}0,0,0.5,1,1\n")
    data.pack(data.load("digits"), here / "my.npz", None)
    job = [
        *(word.replace("digits", "my.npz") for word in PRUNING),
        "--trace",
        "trace.csv",
        "--out",
        "run",
    ]
    killed_at_write = ("checkpoint.safetensors", 2)
    assert finished("run", *job, cwd=here, killed_at_write=killed_at_write)[0] == KILLED
    monkeypatch.chdir(elsewhere)
    assert main(["resume", "../here/run"]) == 0
    assert figures(here / "run")["rounds"] == ROUNDS


# Damaged -----------------------------------------------------------------------------------------


def flipped(content: bytes, place: int) -> bytes:
    """The content with one bit turned over."""
    changed = bytearray(content)
    changed[place] ^= 1
    return bytes(changed)


def resumed(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    status = main(["resume", str(folder)])
    return status, capsys.readouterr().err


@pytest.mark.slow
def test_what_is_damaged_is_told_of_in_one_sentence(
    whole: Path, broken: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint, rounds = broken / "checkpoint.safetensors", broken / "rounds.jsonl"
    config = broken / "config.toml"
    good = {path: path.read_bytes() for path in (checkpoint, rounds, config)}
    capsys.readouterr()
    for path, damage, sentence in (
        (checkpoint, good[checkpoint][:-100], f"{checkpoint} is damaged and cannot be read: "),
        (checkpoint, flipped(good[checkpoint], -1000), f"{checkpoint} is damaged and cannot be "
         "read: its checksum is not that of its content; put back a copy of it, or delete it to "
         "begin anew."),
        (rounds, good[rounds].replace(b'"round": 1,', b'"round": 2,', 1), f"{rounds} is damaged: "
         "it does not hold the "),
        (rounds, good[rounds].replace(b"round", b"sound", 1), f"{rounds} is damaged: line 1 is not "
         "a round."),
        (rounds, b"{\n" + good[rounds], f"{rounds} is damaged: line 1 is not JSON."),
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
    assert_same(broken, whole)


@pytest.mark.slow
def test_a_disk_that_takes_no_more_is_told_of_and_the_run_can_go_on(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    status, errors = finished("run", *PRUNING, "--out", str(folder), largest_file=100_000)
    assert status == 2
    assert errors.startswith(f"adaptcl: {folder / 'best.safetensors'} cannot be written: ")
    assert "File too large" in errors
    assert errors.count("\n") == 1
    assert not list(folder.glob(".*.partial"))
    assert resumed(folder, capsys) == (0, "")
    assert_same(folder, whole)
