"""docs/extending.md: every block of it is run, on a tiny job."""

from __future__ import annotations

import json
import re
import shlex
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

DOCUMENT = Path(__file__).parents[1] / "docs" / "extending.md"
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", DOCUMENT.read_text(encoding="utf-8"), re.M | re.S)
MODULE = "".join(text for kind, text in BLOCKS if text.startswith("# my_methods.py\n"))
PROGRAMS = [text for kind, text in BLOCKS if kind == "python" and text not in MODULE]
COMMANDS = [line for kind, text in BLOCKS if kind == "" for line in text.splitlines()]
TINY = ["--model", "small", "--data", "digits", "--samples", "100", "--workers", "2",
        "--rounds", "2", "--epochs", "1"]  # fmt: skip

Told = tuple[int, str, str]
Command = Callable[..., Told]


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The document's module, beside which all commands are given."""
    (tmp_path / "my_methods.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_methods", raising=False)


def words_of(line: str) -> list[str]:
    program, name, *words = shlex.split(line)
    assert program == "adaptcl"
    return [name, *words, *(TINY if name in ("run", "forecast") else [])]


def test_the_document_has_a_module_a_program_and_commands() -> None:
    assert MODULE.count("# my_methods.py") == 4
    assert (len(PROGRAMS), len(COMMANDS)) == (1, 6)
    assert {kind for kind, _ in BLOCKS} == {"", "python"}


@pytest.mark.slow
def test_every_command_works_one_after_the_other(command: Command) -> None:
    told = {line: command(*words_of(line)) for line in COMMANDS}
    assert [(status, errors) for status, _, errors in told.values()] == [(0, "")] * len(COMMANDS)
    first = Path("runs/momentum")
    assert {path.parent.relative_to(first).as_posix() for path in first.rglob("summary.json")} == {
        f"seed-{seed}/{name}" for seed in (1, 2, 3) for name in ("fedavg", "my_methods.FedAvgM")
    }
    written = tomllib.loads((first / "seed-2/my_methods.FedAvgM/config.toml").read_text())
    assert (written["strategy"], written["server_momentum"], written["seed"]) == (
        "my_methods:FedAvgM", 0.5, 2)  # fmt: skip
    run, compared, forecast, listed, *_ = (output for _, output, _ in told.values())
    assert "my_methods:FedAvgM, 3 runs" in run
    assert "my_methods:FedAvgM, 3 runs" in compared
    assert "my_methods:FedAvgM" in forecast
    assert "my_methods:FedAvgM: FedAVG with momentum on the server" in listed


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_program_works(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(program, "extending.md", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.startswith("my_methods:FedAvgM 0.")


def test_a_plan_gives_a_worker_half_of_each_layer(command: Command) -> None:
    status, _, errors = command(
        "run", "--strategy", "my_methods:HalfForOne", "--out", "half", "--figures", "none", *TINY
    )
    assert (status, errors) == (0, "")
    (_, last) = map(json.loads, Path("half/rounds.jsonl").read_text().splitlines())
    small, whole = (worker["retention"] for worker in last["workers"])
    assert small < 0.6
    assert whole == 1


@pytest.mark.slow
def test_momentum_changes_what_is_learned_and_none_of_it_does_not(command: Command) -> None:
    for name, words in {
        "plain": ["--strategy", "fedavg"],
        "none": ["--strategy", "my_methods:FedAvgM", "--server-momentum", "0"],
        "some": ["--strategy", "my_methods:FedAvgM"],
    }.items():
        assert command("run", *TINY, *words, "--out", name)[0] == 0
    weights = {
        name: load_file(Path(name) / "model.safetensors")["features.0.weight"]
        for name in ("plain", "none", "some")
    }
    assert (weights["plain"] - weights["none"]).abs().max() < 1e-6
    assert (weights["plain"] - weights["some"]).abs().max() > 1e-3


def test_the_codec_sends_as_much_as_it_says() -> None:
    import torch
    from my_methods import Signs, SignsSettings  # type: ignore[import-not-found]

    from adaptcl.codecs import Memory, Parcel
    from adaptcl.models import build
    from adaptcl.units import trace

    model = build("small", (1, 8, 8), 10, seed=0)
    units = trace(model, torch.rand(2, 1, 8, 8))
    state = model.state_dict()
    reference = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    parcel = Parcel(units, units.everything(), state, reference, 1)
    codec = Signs(SignsSettings())
    payload, _ = codec.encode(parcel, Memory())
    assert payload.nbytes == codec.size(parcel)
    decoded = codec.decode(payload, reference)
    assert all(torch.equal(decoded[name].sign(), state[name].sign()) for name in units.parameters)
