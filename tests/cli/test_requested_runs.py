"""The runs that a command line asks for, before anything is trained."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from adaptcl.cli.parser import command_line
from adaptcl.cli.requested_runs import RequestedRuns, requested_runs
from adaptcl.config.config import configure
from adaptcl.config.files import preset
from adaptcl.errors import RunFolderError, SettingError


@pytest.fixture
def requested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RequestedRuns]:
    """What `adaptcl run` would run, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *words: requested_runs(command_line().parse_args(["run", *words]), seeds=True)


Requested = Callable[..., RequestedRuns]


def test_flags_win_over_the_file_and_the_file_over_the_preset(requested: Requested) -> None:
    Path("my.toml").write_text('rounds = 9\nseed = 5\npreset = "paper-cifar10-iid"\n')
    (chosen,) = requested("my.toml", "--rounds", "1").configs
    assert (chosen.job.rounds, chosen.job.seed, chosen.environment.train_time) == (1, 5, 24.1)
    (chosen,) = requested("my.toml", "--preset", "default").configs
    assert (chosen.job.rounds, chosen.environment.train_time) == (9, 20.0)


def test_there_is_a_run_and_a_folder_for_each_seed_and_strategy(requested: Requested) -> None:
    Path("my.toml").write_text('strategy = "fedavg, fedavg-s"\n')
    asked = requested("my.toml", "--seed", "3,1", "--out", "x")
    assert [(each.job.seed, each.job.strategy) for each in asked.configs] == [
        (3, "fedavg"), (3, "fedavg-s"), (1, "fedavg"), (1, "fedavg-s"),
    ]  # fmt: skip
    assert [path.as_posix() for path in asked.folders] == [
        "x/seed-3/fedavg", "x/seed-3/fedavg-s", "x/seed-1/fedavg", "x/seed-1/fedavg-s",
    ]  # fmt: skip
    assert asked.figures == Path("x/figures")


def test_a_run_without_a_name_goes_to_a_folder_named_by_the_time(requested: Requested) -> None:
    (folder,) = requested().folders
    assert folder.parent == Path("runs")
    assert time.strptime(folder.name, "%Y%m%d-%H%M%S")


@pytest.mark.parametrize("strategy", ["3", "[1, 2]", "true"])
def test_a_strategy_of_the_wrong_type_is_refused(requested: Requested, strategy: str) -> None:
    Path("my.toml").write_text(f"strategy = {strategy}\n")
    with pytest.raises(SettingError, match=r"^strategy is "):
        requested("my.toml")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["run", "--seed", "1,1"], "seed names the same seed twice."),
        (["forecast", "--seed", "1,2"],
         "seed names several seeds, which only `adaptcl run` accepts."),
        (["run", "--strategy", "fedavg,fedavg"],
         "strategy is 'fedavg,fedavg', but it must not name a strategy twice."),
    ],
)  # fmt: skip
def test_a_list_that_cannot_be_run_is_refused(
    refused: Callable[[list[str], str], None], words: list[str], sentence: str
) -> None:
    refused(words, sentence)


def test_no_run_begins_in_a_folder_with_a_run_around_others_or_inside_one(
    requested: Requested, runs: Path
) -> None:
    both, single = runs / "both", runs / "seed2"
    hint = "choose another folder, or go on with"
    for strategy, folder, sentence in [
        ("fedavg,adaptcl", both, f"{both / 'adaptcl'} already holds a run; {hint} it by `adaptcl "
         f"resume {both / 'adaptcl'}`, from Python by resume=True."),
        ("fedavg", both, f"{both} already holds runs (adaptcl, fedavg-s); {hint} them by `adaptcl "
         f"resume {both}`."),
        ("fedavg,ssp-s", single, f"{single} already holds a run; {hint} it by `adaptcl resume "
         f"{single}`, from Python by resume=True."),
    ]:  # fmt: skip
        with pytest.raises(RunFolderError) as refused:
            requested("--strategy", strategy, "--out", str(folder))
        assert str(refused.value) == sentence


def test_flags_and_changes_of_a_file_without_effect_are_explained(requested: Requested) -> None:
    Path("mine.toml").write_text(
        'strategy = "fedavg-s"\nmin_retention = 0.5\nlabel_share = 80.0\n'
        "[adaptcl]\npruning_interval = 3\n"
    )
    assert requested("mine.toml", "--mixing", "0.3").ineffective == [
        "min_retention has no effect with strategy fedavg-s; it is for adaptcl.",
        "mixing has no effect with strategy fedavg-s; it is for fedasync-s.",
    ]


def test_nothing_in_the_settings_file_of_a_run_is_without_effect(requested: Requested) -> None:
    Path("complete.toml").write_text(configure(preset("default")).to_toml())
    assert requested("complete.toml").ineffective == []
