"""`adaptcl run`, `forecast` and `describe` in this process, not in another one."""

from __future__ import annotations

import json
import re
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from adaptcl.cli.job_commands import RequestedRuns, requested_runs, saying_how_to_resume
from adaptcl.cli.parser import command_line
from adaptcl.config.config import configure
from adaptcl.config.files import preset
from adaptcl.errors import RunFolderError, SettingError

Command = Callable[..., tuple[int, str, str]]
Refused = Callable[[list[str], str], None]

SMALL = ["--model", "small", "--data", "digits", "--workers", "2", "--rounds", "2",
         "--epochs", "0.2"]  # fmt: skip


def test_several_strategies_are_run_one_after_the_other_and_compared(runs: Path) -> None:
    for name in ("fedavg-s", "adaptcl"):
        folder = runs / "both" / name
        assert json.loads((folder / "summary.json").read_text())["strategy"] == name
        assert tomllib.loads((folder / "config.toml").read_text())["strategy"] == name
    assert {"overview.png", "heterogeneity.png"} <= {
        p.name for p in (runs / "both" / "figures").iterdir()
    }


def test_a_run_shows_its_progress_its_result_its_folder_and_settings_without_effect(
    command: Command,
) -> None:
    words = ("--strategy", "fedavg", "--dgc-sparsity", "0.9", "--out", "here")
    status, output, errors = command("run", *SMALL, *words)
    assert status == 0
    assert errors == "adaptcl: dgc_sparsity has no effect with codec plain; it is for dgc.\n"
    for text in ("fedavg round 1/2", "fedavg finished 2 rounds", "accuracy",
                 "run      here", "figures  here/figures (overview.png, "):  # fmt: skip
        assert text in output
    assert "\x1b" not in output
    assert "speed-up" not in output  # a run alone is compared with nothing
    assert Path("here/figures/overview.png").exists()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["describe"], "tracing small"),
        (["forecast"], "tracing small and computing the times of adaptcl"),
        (["run", "--figures", "none"], "tracing small and timing its training"),
    ],
)
def test_what_takes_a_moment_is_named_on_a_terminal_meanwhile(
    command: Command, monkeypatch: pytest.MonkeyPatch, words: list[str], named: str
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    _, _, errors = command(*words, *SMALL)
    assert "starting …\r\033[K" in errors
    assert f"{named} …\r\033[K" in errors


def test_a_settings_file_may_begin_with_a_byte_order_mark(command: Command) -> None:
    Path("my.toml").write_text('model = "small"\ndata = "digits"\n', encoding="utf-8-sig")
    status, output, _ = command("describe", "my.toml")
    assert status == 0
    assert "units" in output


def test_a_folder_that_no_file_system_takes_is_refused(refused: Refused) -> None:
    sentence = f"{'x' * 60} cannot be made: File name too long."
    refused(["run", *SMALL, "--out", "x" * 300], sentence)


@pytest.mark.slow
def test_the_config_of_a_run_makes_the_same_run_again_among_other_seeds(
    command: Command, runs: Path
) -> None:
    before = runs / "both" / "fedavg-s"
    status, output, _ = command(
        "run", str(before / "config.toml"), "--seed", "3,1", "--out", "again"
    )
    assert status == 0
    assert "fedavg-s, 2 runs" in output
    for name in ("config.toml", "rounds.jsonl", "model.safetensors"):
        assert Path("again/seed-1", name).read_bytes() == (before / name).read_bytes()


def test_a_custom_model_and_data_are_found_in_the_current_folder(command: Command) -> None:
    Path("my_parts.py").write_text(
        "import torch\n"
        "def points(data_dir):\n"
        "    x = torch.randn(60, 4); y = (x[:, 0] > 0).long()\n"
        "    return (x[:40], y[:40]), (x[40:], y[40:])\n"
        "def line(shape, classes):\n"
        "    return torch.nn.Linear(shape[0], classes)\n"
    )
    status, _, errors = command(
        "run", "--model", "my_parts:line", "--data", "my_parts:points", "--workers", "2",
        "--rounds", "1", "--strategy", "fedavg",
    )  # fmt: skip
    assert (status, errors) == (0, "")
    (made,) = Path("runs").iterdir()
    assert (made / "summary.json").exists()
    sys.modules.pop("my_parts")


def test_of_many_interrupted_runs_the_folder_above_is_named_if_it_holds_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = [Path("mine", f"seed-{seed}", name) for seed in (1, 2) for name in ("a", "b")]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "config.toml").write_text("")
        (folder / "rounds.jsonl").write_text("")

    def said(paths: list[Path]) -> str:
        with pytest.raises(KeyboardInterrupt), saying_how_to_resume(paths):
            raise KeyboardInterrupt
        return capsys.readouterr().err

    assert said(folders) == "adaptcl: stopped; `adaptcl resume mine` goes on.\n"
    assert "resume mine/seed-1/a mine/seed-1/b mine/seed-2/a`" in said(folders[:3])
    assert "/mine/seed-1/a mine/seed-1/b" in said([folders[0].resolve(), *folders[1:3]])


@pytest.mark.parametrize("named", ['"fedavg,adaptcl"', '["fedavg", "adaptcl"]', '["fedavg"]'])
def test_strategies_in_a_file_mean_the_same_as_those_of_the_flag(
    command: Command, named: str
) -> None:
    job = 'model = "small"\ndata = "digits"\nworkers = 2\nrounds = 2\ntrain_time = 1.0\n'
    Path("my.toml").write_text(f"{job}strategy = {named}\n")
    Path("none.toml").write_text(job)
    flag = ",".join(re.findall(r"[a-z]+", named))
    told = command("forecast", "my.toml")
    assert told[0] == 0
    assert told == command("forecast", "none.toml", "--strategy", flag)


@pytest.mark.parametrize("name", ["mine.py:build", "mine.build", "./mine.py:build"])
def test_a_file_of_the_users_is_named_as_a_module(command: Command, name: str) -> None:
    Path("mine.py").write_text("")
    for flag in ("--model", "--data"):
        status, _, errors = command("run", "--data", "digits", flag, name)
        assert status == 2
        assert errors.endswith("; did you mean 'mine:build'?\n")
        assert errors.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["absent.toml"], "The settings file absent.toml does not exist."),
        (["--model", "big"], "There is no model 'big'; choose one of resnet18, "
         "resnet50, small, vgg16, or give your own as package.module:build."),
        (["--model", "nobody:nothing"], "There is no module nobody, where a model 'nobody:nothing' "
         "should be; is it in the folder where you are, or on PYTHONPATH?"),
        (["--data", "cifar10"], "cifar10 needs a data folder: get it with `adaptcl data get "
         "cifar10 --data-dir DIR` and run with --data-dir DIR."),
        (["--data", "digits", "--bandwidths", "1,2,3"],
         "bandwidths has 3 entries, but it must have one for each of the 10 workers."),
        (["--data", "digits", "--trace", "/absent.csv"],
         "trace: /absent.csv cannot be read (No such file or directory)."),
        (["--data", "digits", "--fixed", "neck*"], "No module of the model has a name like "
         "'neck*'; there are 'features', 'features.0', 'features.1', 'features.2', 'features.3' "
         "and others."),
        (["--data", "digits", "--strategy", "fedavg,adaptcl", "--pruned-rates", "0.1,0.2"],
         "pruned_rates has a row of 2 rates, but it must have one for each of the 10 workers."),
        (["--data", "digits", "--workers", "5000"],
         "1437 samples cannot be dealt to 5000 workers: each needs at least one."),
    ],
)  # fmt: skip
def test_a_wrong_job_is_refused_before_any_work_and_leaves_nothing_behind(
    refused: Refused, words: list[str], sentence: str
) -> None:
    refused(["run", "--out", "x", *words], sentence)
    assert list(Path().iterdir()) == []


def test_a_forecast_shows_the_times_of_runs_and_leaves_nothing_behind(command: Command) -> None:
    words = ("--strategy", "fedavg-s,adaptcl", "--mixing", "0.3")
    status, output, errors = command("forecast", *SMALL, *words)
    assert status == 0
    assert errors.startswith("adaptcl: mixing has no effect with strategy fedavg-s, adaptcl; ")
    assert all(word in output for word in ("fedavg-s", "adaptcl", "rounds per time", "1.00×"))
    assert not Path("runs").exists()


def test_a_model_is_described_layer_by_layer(command: Command) -> None:
    status, output, errors = command("describe", *SMALL, "--fixed", "features.0")
    assert (status, errors) == (0, "")
    rows = {line.split()[0]: line for line in output.splitlines()}
    assert rows["features.0"].endswith("fixed by a pattern")
    assert rows["classifier"].endswith("the model returns them")
    assert rows["features.4"].split()[:4] == ["features.4", "Conv2d", "32", "32"]
    assert " %) can be cut; no sub-model retains less than " in output


def test_describing_a_model_needs_no_samples_to_test_on(command: Command) -> None:
    Path("my_points.py").write_text(
        "import torch\n\n"
        "def load(data_dir):\n"
        "    return (torch.rand(60, 1, 8, 8), torch.arange(60) % 3), None\n"
    )
    sys.path.insert(0, str(Path.cwd()))
    words = ("--model", "small", "--data", "my_points:load")
    status, output, errors = command("describe", *words)
    assert (status, errors) == (0, "")
    assert "classifier" in output


# What is asked for -------------------------------------------------------------------------------


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
    assert asked.base == Path("x")


def test_a_run_without_a_name_goes_to_a_folder_named_by_the_time(requested: Requested) -> None:
    (folder,) = requested().folders
    assert folder.parent == Path("runs")
    assert time.strptime(folder.name, "%Y%m%d-%H%M%S")


def test_an_empty_list_of_seeds_is_refused(requested: Requested) -> None:
    Path("my.toml").write_text("seed = []\n")
    with pytest.raises(SettingError, match=r"^seed is \[\], but it must be a whole number"):
        requested("my.toml")


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
         "seed names several seeds; `adaptcl run` and `adaptcl sweep` make a run for each."),
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
