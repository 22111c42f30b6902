"""`adaptcl sweep`, and commands of several runs of which one fails."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from adaptcl.cli import job_commands
from adaptcl.errors import SettingError

Command = Callable[..., tuple[int, str, str]]
Refused = Callable[[list[str], str], None]

JOB = """
model = "small"
data = "digits"
samples = 100
workers = 2
rounds = 1
epochs = 0.2
strategy = ["fedavg-s", "adaptcl"]
"""

LISTENER = """
from adaptcl.events import RoundFinished

heard = []

def listen(event):
    heard.append(type(event).__name__)
"""

TOUCHY = """
import torch

def points(data_dir):
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(1))
    y = (x[:, 0] > 0).long()
    return (x[:40], y[:40]), (x[40:], y[40:])

class Line(torch.nn.Linear):
    def forward(self, x):
        if bad and ready:
            bad.clear()
            raise RuntimeError("out of luck")
        return super().forward(x)

def line(shape, classes):
    return Line(shape[0], classes)

bad, ready = [], []

def listen(event):
    ready.extend([event] * (type(event).__name__ == "RoundFinished"))
    if type(event).__name__ == "RunStarted":
        ready.clear()
        bad[:] = [event] * (event.strategy == "fedavg")
"""


@pytest.fixture(autouse=True)
def forget_modules() -> Iterator[None]:
    yield
    for name in ("my_listener", "touchy"):
        sys.modules.pop(name, None)


@pytest.mark.slow
def test_a_sweep_makes_every_run_shows_one_table_and_goes_on_where_it_stopped(
    command: Command,
) -> None:
    Path("grid.toml").write_text(f"{JOB}sigma = [2, 4]\n")
    Path("my_listener.py").write_text(LISTENER)
    words = ("sweep", "grid.toml", "--figures", "none", "--listener", "my_listener:listen")
    status, output, errors = command(*words)
    assert status == 0
    assert "4 runs in runs/grid" in errors
    made = sorted(path.name for path in Path("runs/grid").iterdir() if path.is_dir())
    assert made == [f"{name}_sigma-{n}" for name in ("adaptcl", "fedavg-s") for n in (2, 4)]
    assert "verdict" in output
    assert output.count("run      runs/grid/") == 4
    assert sys.modules["my_listener"].heard.count("RunFinished") == 4
    Path("runs/grid/adaptcl_sigma-4/summary.json").unlink()
    begun = {path: path.stat().st_mtime_ns for path in Path("runs/grid").glob("*/summary.json")}
    status, _, errors = command(*words)
    assert (status, errors.count("is finished already")) == (0, 3)
    assert Path("runs/grid/adaptcl_sigma-4/summary.json").exists()
    assert all(path.stat().st_mtime_ns == when for path, when in begun.items())
    Path("grid.toml").write_text(f"{JOB}sigma = [2]\nlearning_rate = 0.5\n")
    status, _, errors = command(*words)
    assert status == 2
    assert "fedavg-s with seed 1 failed before its first round (runs/grid/fedavg-s" in errors
    assert "learning_rate was" in errors
    again = "adaptcl sweep grid.toml --figures none --listener my_listener:listen --out runs/grid"
    assert errors.endswith(f"`{again}` goes on with them.\n")


def test_a_sweep_names_the_command_that_goes_on_with_all_its_flags(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise SettingError("Not today.")

    monkeypatch.setattr(job_commands, "session_of", fail)
    words = ["sweep", "--data", "digits", "--model", "small", "--seed", "1,2"]
    assert f"`adaptcl {' '.join(words)} --out runs/sweep` goes on with" in command(*words)[2]
    words += ["--out", "sw"]
    assert f"`adaptcl {' '.join(words)}` goes on with" in command(*words)[2]


def test_one_failing_run_of_several_is_named_and_the_others_run(command: Command) -> None:
    Path("touchy.py").write_text(TOUCHY)
    words = ["--model", "touchy:line", "--data", "touchy:points", "--workers", "2", "--threads",
             "1", "--rounds", "3", "--strategy", "fedavg,fedavg-s", "--out", "both",
             "--figures", "none"]  # fmt: skip
    status, output, errors = command("run", *words, "--listener", "touchy:listen")
    assert status == 2
    assert json.loads(Path("both/fedavg-s/summary.json").read_text())["rounds"] == 3
    assert "run      both/fedavg-s\n" in output
    assert "run      both/fedavg\n" not in output
    assert "Traceback" in errors
    # Training may be ahead of what listeners hear, so it fails in the second or the third round.
    assert re.search(
        r"adaptcl: 1 of 2 runs failed:\n"
        r"- fedavg with seed 1 failed in round [23] \(both/fedavg\): RuntimeError: out of luck\n"
        r"`adaptcl resume both/fedavg` goes on with them.\n$",
        errors,
    )
    Path("my_listener.py").write_text(LISTENER)
    listening = ("--listener", "my_listener:listen", "--figures", "none")
    status, output, _ = command("resume", "both/fedavg", *listening)
    assert status == 0
    assert "RunFinished" in sys.modules["my_listener"].heard


def test_a_list_of_values_is_for_a_sweep_and_of_strategies_for_a_run_too(
    refused: Refused, command: Command
) -> None:
    Path("grid.toml").write_text(f"{JOB}sigma = [2, 4]\n")
    refused(
        ["run", "grid.toml"],
        "sigma is [2, 4], but a run has one value; `adaptcl sweep` makes a run for each of "
        "several.",
    )
    Path("two.toml").write_text(JOB)
    status, output, _ = command("forecast", "two.toml")
    assert status == 0
    assert "fedavg-s" in output
    assert "adaptcl" in output


@pytest.mark.parametrize("words", [[], ["--sigma", "4"]])
def test_a_sweep_of_nothing_is_refused(words: list[str], refused: Refused) -> None:
    refused(
        ["sweep", *words],
        "A sweep needs a settings file, or a setting with several values, such as --sigma 2,4; "
        "`adaptcl run` makes one run.",
    )
    assert not Path("runs").exists()


def test_what_cannot_listen_is_refused(refused: Refused) -> None:
    refused(
        ["run", "--listener", "print"],
        "--listener is 'print', but it must be a function as package.module:function.",
    )
