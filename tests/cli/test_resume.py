"""`adaptcl resume`."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

Command = Callable[..., tuple[int, str, str]]
Refused = Callable[[list[str], str], None]


def test_the_folder_of_several_runs_means_the_unfinished_ones_in_it(
    command: Command, runs: Path
) -> None:
    Path("two/adaptcl").mkdir(parents=True)
    shutil.copy(runs / "both" / "adaptcl" / "config.toml", "two/adaptcl")
    shutil.copytree(runs / "both" / "fedavg-s", "two/fedavg-s")
    status, output, errors = command("resume", "two")
    assert (status, errors) == (0, "")
    assert "adaptcl finished 2 rounds" in output
    assert "two/fedavg-s is finished already." in output
    assert Path("two/figures/overview.png").exists()
    for name in ("rounds.jsonl", "model.safetensors"):
        before = runs / "both" / "adaptcl" / name
        assert Path("two/adaptcl", name).read_bytes() == before.read_bytes()


def test_figures_are_drawn_beside_runs_of_one_command_and_inside_any_other(
    command: Command, runs: Path
) -> None:
    shutil.copytree(runs / "both" / "fedavg-s", "some/a")
    for name in ("fedavg-s", "adaptcl"):
        shutil.copytree(runs / "both" / name, f"some/job/{name}")
    words = ("some/a", "some/job/fedavg-s", "some/job/adaptcl")
    status, output, errors = command("resume", *words)
    assert (status, errors) == (0, "")
    assert output.startswith("".join(f"{word} is finished already.\n" for word in words))
    drawn = [line.split()[1] for line in output.splitlines() if line.startswith("figures")]
    assert sorted(drawn) == ["some/a/figures", "some/job/figures"]
    assert all(Path(folder, "overview.png").exists() for folder in drawn)
    assert not Path("some/figures").exists()
    assert not Path("figures").exists()


def test_other_runs_go_on_when_one_cannot_be_resumed(command: Command, runs: Path) -> None:
    for name in ("a-damaged", "b-foreign", "c-whole"):
        Path("some", name).mkdir(parents=True)
        shutil.copy(runs / "both" / "adaptcl" / "config.toml", f"some/{name}")
    Path("some/a-damaged/rounds.jsonl").write_text("{}\n")
    Path("broken.py").write_text("def load(data_dir):\n    raise OSError('the disk is gone')\n")
    config = Path("some/b-foreign/config.toml")
    config.write_text(config.read_text().replace('data = "digits"', 'data = "broken:load"'))
    status, output, errors = command("resume", "some")
    assert status == 2
    assert "adaptcl finished 2 rounds" in output
    assert "run      some/c-whole" in output
    assert "Traceback" in errors
    assert errors.endswith(
        "adaptcl: 2 of 3 runs could not be resumed:\n"
        "some/a-damaged: some/a-damaged/rounds.jsonl is damaged: line 1 is not a round.\n"
        "some/b-foreign: OSError: the disk is gone\n"
    )
    Path("some/c-whole/summary.json").write_text("{")
    for named in (["some/a-damaged", "absent"], ["some/c-whole", "absent"]):
        status, output, errors = command("resume", *named)
        assert (status, output) == (2, "")
        assert errors.startswith("adaptcl: 2 of 2 runs could not be resumed:\n")


def test_a_run_from_python_is_resumed_from_python(refused: Refused, command: Command) -> None:
    Path("run").mkdir()
    Path("run/config.toml").write_text(
        'strategy = "adaptcl"\nmodel = "(given from Python)"\ndata = "digits"\n'
    )
    refused(
        ["resume", "run"],
        "run was started from Python with its own model or data; continue it with "
        "adaptcl.run(..., out=..., resume=True).",
    )


@pytest.mark.parametrize("name", ["rounds", "learning_rate", "clip_norm"])
def test_nothing_changes_in_a_run_across_a_network(
    refused: Refused, command: Command, runs: Path, name: str
) -> None:
    Path("net").mkdir()
    shutil.copy(runs / "both" / "adaptcl" / "config.toml", "net")
    Path("net/network.toml").touch()
    refused(
        ["resume", "net", f"--{name.replace('_', '-')}", "7"],
        f"{name} is 7, but net is a run across a network, whose settings stay as they are.",
    )


@pytest.mark.slow
def test_a_run_that_ended_early_is_finished_and_cannot_be_made_longer(
    command: Command, refused: Refused
) -> None:
    words = ("--strategy", "fedavg", "--samples", "100", "--rounds", "3", "--until", "1s")
    status, output, errors = command("run", *words, "--out", "short")
    assert (status, errors) == (0, "")
    assert "fedavg finished 1 round (ended by max_virtual_time)" in output
    assert Path("short/figures/overview.png").exists()
    output = command("resume", "short")[1]
    assert "short is finished already (ended by max_virtual_time)." in output
    refused(
        ["resume", "short", "--rounds", "9"],
        "short cannot go on to 9 rounds: max_virtual_time ended it before its rounds were done, "
        "and more rounds do not change that; begin another run in another folder.",
    )
