"""A run that goes on to more rounds ends as one that had them from the start, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import adaptcl
from adaptcl.errors import RunFolderError
from adaptcl.strategies import Synchronous, SynchronousSettings
from adaptcl.strategies.strategy import Job
from tests.runs.small_runs import CutOffError, assert_same, clouds, cut_off_after, small_run


class Plain(Synchronous):
    """A strategy of somebody's own, which might do anything with the number of rounds."""

    summary = "whole model for everybody"


class Willing(Synchronous):
    """The same, but it says that it does not."""

    summary = "whole model for everybody"
    extendable = True


class Restless(Willing):
    """Inherits that word, and breaks it."""

    def __init__(self, job: Job, settings: SynchronousSettings) -> None:
        super().__init__(job, settings)
        self.halfway = job.rounds // 2


def run(out: Path, rounds: int, **settings: Any) -> adaptcl.Result:
    return small_run(out, rounds=rounds, **settings)


def assert_longer(folder: Path, reference: Path) -> None:
    """The same run, and its settings say so too."""
    assert_same(folder, reference)
    name = "config.toml"
    assert (folder / name).read_bytes() == (reference / name).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["adaptcl", "fluid"])
def test_a_finished_run_made_longer_is_the_longer_run(tmp_path: Path, strategy: str) -> None:
    settings: dict[str, Any] = {"strategy": strategy, "codec": "dgc", "evaluate_every": 2}
    if strategy == "adaptcl":
        settings |= {"pruning_interval": 2}
    run(tmp_path / "at-once", 5, **settings)
    run(tmp_path / "longer", 3, **settings)
    result = run(tmp_path / "longer", 5, resume=True, **settings)
    assert len(result.rounds) == 5
    assert_longer(tmp_path / "longer", tmp_path / "at-once")


@pytest.mark.slow
def test_a_run_can_be_made_longer_again_and_after_it_was_cut_off(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"strategy": "fedavg-s", "checkpoint_every": 2}
    run(tmp_path / "at-once", 9, **settings)
    run(tmp_path / "longer", 5, **settings)
    run(tmp_path / "longer", 6, resume=True, **settings)
    with pytest.raises(CutOffError):
        run(tmp_path / "longer", 9, resume=True, listeners=[cut_off_after(7)], **settings)
    run(tmp_path / "longer", 9, resume=True, **settings)
    assert_longer(tmp_path / "longer", tmp_path / "at-once")


@pytest.mark.slow
def test_what_was_killed_while_it_was_made_longer_goes_on(tmp_path: Path) -> None:
    run(tmp_path / "at-once", 4, strategy="fedavg-s")
    for at in ("config.toml", "summary.json"):
        folder = tmp_path / f"killed-after-{at}"
        run(folder, 2, strategy="fedavg-s")
        text = (folder / "config.toml").read_text()
        (folder / "config.toml").write_text(text.replace("rounds = 2\n", "rounds = 4\n"))
        if at == "summary.json":
            (folder / "summary.json").unlink()
        run(folder, 4, resume=True, strategy="fedavg-s")
        assert_longer(folder, tmp_path / "at-once")


@pytest.mark.slow
def test_a_run_that_was_killed_at_its_very_end_does_its_last_round_again(tmp_path: Path) -> None:
    run(tmp_path / "at-once", 3, strategy="fedavg-s")
    run(tmp_path / "killed", 3, strategy="fedavg-s")
    (tmp_path / "killed" / "summary.json").unlink()
    run(tmp_path / "killed", 3, resume=True, strategy="fedavg-s")
    assert_longer(tmp_path / "killed", tmp_path / "at-once")


def test_without_a_barrier_a_finished_run_cannot_be_made_longer(tmp_path: Path) -> None:
    run(tmp_path / "r", 2, strategy="fedasync-s")
    before = {each.name: each.read_bytes() for each in (tmp_path / "r").iterdir()}
    with pytest.raises(RunFolderError) as refused:
        run(tmp_path / "r", 4, resume=True, strategy="fedasync-s")
    assert str(refused.value) == (
        f"{tmp_path / 'r'} cannot go on to 4 rounds: workers that had done all their rounds have "
        "stopped, which changes what others do; begin a run of 4 rounds in another folder."
    )
    assert {each.name: each.read_bytes() for each in (tmp_path / "r").iterdir()} == before


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ssp-s", "fedbuff"])
def test_without_a_barrier_it_can_before_anybody_has_stopped(tmp_path: Path, strategy: str) -> None:
    run(tmp_path / "at-once", 5, strategy=strategy)
    with pytest.raises(CutOffError):
        run(tmp_path / "longer", 4, strategy=strategy, listeners=[cut_off_after(2)])
    run(tmp_path / "longer", 5, resume=True, strategy=strategy)
    assert_longer(tmp_path / "longer", tmp_path / "at-once")


@pytest.mark.slow
def test_a_strategy_of_ones_own_must_say_that_it_can(tmp_path: Path) -> None:
    run(tmp_path / "at-once", 4, strategy=Willing)
    for each in (Willing, Plain, Restless):
        run(tmp_path / each.__name__, 2, strategy=each)
    run(tmp_path / "Willing", 4, resume=True, strategy=Willing)
    assert_longer(tmp_path / "Willing", tmp_path / "at-once")
    for each in (Plain, Restless):
        with pytest.raises(RunFolderError, match=r"does not say, by extendable = True"):
            run(tmp_path / each.__name__, 4, resume=True, strategy=each)


def test_a_run_cannot_be_made_shorter_or_longer_without_a_checkpoint(tmp_path: Path) -> None:
    run(tmp_path / "r", 3, strategy="fedavg-s")
    with pytest.raises(RunFolderError, match="rounds was 3 and is 2 now"):
        run(tmp_path / "r", 2, resume=True, strategy="fedavg-s")
    (tmp_path / "r" / "checkpoint.safetensors").unlink()
    with pytest.raises(RunFolderError, match="it has no checkpoint from before its last round"):
        run(tmp_path / "r", 4, resume=True, strategy="fedavg-s")
    assert run(tmp_path / "r", 3, resume=True, strategy="fedavg-s").summary.rounds == 3


def test_a_run_is_not_made_longer_with_other_data(tmp_path: Path) -> None:
    run(tmp_path / "r", 2, strategy="fedavg-s")
    before = (tmp_path / "r" / "rounds.jsonl").read_bytes()
    with pytest.raises(RunFolderError, match="begun with other data"):
        run(tmp_path / "r", 4, resume=True, strategy="fedavg-s", train=clouds(120, 5))
    assert (tmp_path / "r" / "rounds.jsonl").read_bytes() == before
    assert (tmp_path / "r" / "summary.json").exists()


# From the command line -------------------------------------------------------------------------

Command = Callable[..., tuple[int, str, str]]
SMALL = ["--model", "small", "--data", "digits", "--samples", "100", "--workers", "2",
         "--epochs", "1"]  # fmt: skip


@pytest.mark.slow
def test_the_command_makes_runs_longer(command: Command, tmp_path: Path) -> None:
    both = ["--strategy", "fedavg-s,adaptcl", "--out"]
    command("run", *SMALL, "--rounds", "4", *both, "at-once")
    command("run", *SMALL, "--rounds", "2", *both, "longer")
    status, output, errors = command("resume", "longer", "--rounds", "4")
    assert (status, errors) == (0, "")
    assert "finished already" not in output
    for name in ("fedavg-s", "adaptcl"):
        assert_longer(tmp_path / "longer" / name, tmp_path / "at-once" / name)
    assert "longer/adaptcl is finished already." in command("resume", "longer", "--rounds", "4")[1]
    assert command("resume", "longer/adaptcl", "--rounds", "3") == (
        2, "",
        "adaptcl: The run was begun with other settings: rounds was 4 and is 3 now; put it back, "
        "or choose another folder.\n",
    )  # fmt: skip


def test_a_finished_run_whose_settings_were_edited_is_not_passed_off_as_theirs(
    command: Command,
) -> None:
    command("run", *SMALL, "--rounds", "2", "--strategy", "fedavg-s", "--out", "r")
    path = Path("r/config.toml")
    path.write_text(path.read_text().replace("epochs = 1.0", "epochs = 0.4"))
    assert command("resume", "r") == (
        2, "",
        "adaptcl: The run was begun with other settings: epochs was 1.0 and is 0.4 now; put it "
        "back, or choose another folder.\n",
    )  # fmt: skip
