"""`--seed 1,2,3`: one run a seed, in one command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Command = Callable[..., tuple[int, str, str]]

SMALL = ("--model=small", "--data=digits", "--workers=2", "--rounds=2", "--epochs=0.2")


def test_several_seeds_are_several_runs_and_one_row(command: Command) -> None:
    words = ["run", *SMALL, "--strategy", "fedavg-s"]
    status, output, errors = command(*words, "--seed", "3,1", "--out", "both")
    assert (status, errors) == (0, "")
    assert "fedavg-s, 2 runs" in output
    assert command(*words, "--seed", "3", "--out", "one")[0] == 0
    for name in ("config.toml", "rounds.jsonl", "model.safetensors"):
        assert Path("both/seed-3", name).read_bytes() == Path("one", name).read_bytes()
    status, _, errors = command(*words, "--seed", "1,2", "--out", "both")
    assert (status, errors.split(";")[0]) == (2, "adaptcl: both/seed-1 already holds a run")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["run", "--seed", "1,1"], "seed names the same seed twice."),
        (["run", "--seed", "1,x"], "seed is 'x', but it must be a whole number, at least 0 and at "
         f"most {2**63 - 1}."),
        (["forecast", "--seed", "1,2"], "seed names several seeds, which only `adaptcl run` "
         "takes."),
    ],
)  # fmt: skip
def test_seeds_that_cannot_be_are_refused(
    command: Command, words: list[str], sentence: str
) -> None:
    assert command(*words) == (2, "", f"adaptcl: {sentence}\n")
