"""The command line, called in this process; `test_cli_process.py` has what takes another one."""

from __future__ import annotations

import json
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adaptcl import __version__, data
from adaptcl.codecs import CODECS
from adaptcl.config import all_settings, presets
from adaptcl.models import MODELS
from adaptcl.pruning import ORDERS
from adaptcl.strategies import STRATEGIES

SMALL = ["--model", "small", "--data", "digits", "--workers", "2", "--rounds", "2",
         "--epochs", "0.2"]  # fmt: skip

OR_OWN = ", or your own as package.module:Class."

Told = tuple[int, str, str]
Command = Callable[..., Told]


def refused(told: Told, sentence: str) -> None:
    """Exit status 2, one sentence, nothing else."""
    status, output, errors = told
    assert (status, output, errors) == (2, "", f"adaptcl: {sentence}\n")


# run -------------------------------------------------------------------------------------------


def test_several_strategies_are_run_one_after_the_other_and_compared(runs: Path) -> None:
    for name in ("fedavg-s", "adaptcl"):
        folder = runs / "both" / name
        assert json.loads((folder / "summary.json").read_text())["strategy"] == name
        assert tomllib.loads((folder / "config.toml").read_text())["strategy"] == name
    assert {"overview.png", "heterogeneity.png"} <= {
        p.name for p in (runs / "both" / "figures").iterdir()
    }


def test_a_run_says_what_it_does_what_came_of_it_and_where_it_is(command: Command) -> None:
    status, output, errors = command("run", *SMALL, "--strategy", "fedavg", "--out", "here")
    assert (status, errors) == (0, "")
    for words in ("fedavg round 1/2", "fedavg finished 2 rounds", "accuracy", "speed-up",
                  "run      here", "figures  here/figures (overview.png, "):  # fmt: skip
        assert words in output
    assert "\x1b" not in output
    assert (Path("here") / "figures" / "overview.png").stat().st_size > 1000


def test_a_flag_that_changes_nothing_is_told_of(command: Command) -> None:
    words = ("run", *SMALL, "--strategy", "fedavg", "--dgc-sparsity", "0.9")
    status, _, errors = command(*words, "--out", "here")
    assert status == 0
    assert errors == "adaptcl: dgc_sparsity has no effect with codec plain; it is for dgc.\n"


def test_a_run_without_a_name_goes_to_a_folder_named_by_the_time(command: Command) -> None:
    assert command("run", *SMALL, "--strategy", "fedavg")[0] == 0
    (made,) = Path("runs").iterdir()
    assert time.strptime(made.name, "%Y%m%d-%H%M%S")
    assert (made / "summary.json").exists()


def test_the_config_of_a_run_makes_the_same_run_again(command: Command, runs: Path) -> None:
    before = runs / "both" / "adaptcl"
    assert command("run", str(before / "config.toml"), "--out", "again")[0] == 0
    for name in ("config.toml", "rounds.jsonl", "model.safetensors"):
        assert (Path("again") / name).read_bytes() == (before / name).read_bytes()


def test_flags_win_over_the_file_and_the_file_over_the_preset(command: Command) -> None:
    Path("my.toml").write_text(
        'model = "small"\ndata = "digits"\nworkers = 2\nrounds = 9\nepochs = 0.2\nseed = 5\n'
        'preset = "paper-cifar10-iid"\n'
    )
    words = ("run", "my.toml", "--rounds", "1", "--strategy", "fedavg", "--out")
    assert command(*words, "a")[0] == 0
    settings = tomllib.loads(Path("a/config.toml").read_text())
    assert (settings["rounds"], settings["seed"], settings["train_time"]) == (1, 5, 24.1)
    assert command(*words, "b", "--preset", "default")[0] == 0
    assert tomllib.loads(Path("b/config.toml").read_text())["train_time"] == 20.0


def test_a_forecast_says_how_long_runs_would_take_and_leaves_nothing_behind(
    command: Command,
) -> None:
    status, output, errors = command("forecast", *SMALL, "--strategy", "fedavg-s,adaptcl")
    assert (status, errors) == (0, "")
    assert all(word in output for word in ("fedavg-s", "adaptcl", "speed-up", "1.00×"))
    assert not Path("runs").exists()


def test_a_model_is_described_layer_by_layer(command: Command) -> None:
    status, output, errors = command("describe", *SMALL, "--fixed", "features.0")
    assert status == 0
    assert not errors
    rows = {line.split()[0]: line for line in output.splitlines()}
    assert rows["features.0"].endswith("fixed by a pattern")
    assert rows["classifier"].endswith("the model returns them")
    assert rows["features.4"].split()[:4] == ["features.4", "Conv2d", "32", "32"]
    assert " %) can be cut; no sub-model retains less than " in output


def test_what_cannot_be_forecast_is_said_in_one_sentence(command: Command) -> None:
    status, _, errors = command("forecast", *SMALL, "--training-time", "measured")
    assert status == 2
    assert "cannot be forecast" in errors


def test_a_file_may_name_several_strategies(command: Command) -> None:
    Path("my.toml").write_text('strategy = "fedavg, fedavg-s"\n')
    assert command("run", "my.toml", *SMALL, "--out", "x")[0] == 0
    assert {p.name for p in Path("x").iterdir()} == {"fedavg", "fedavg-s", "figures"}


def test_your_own_model_and_data_are_found_in_the_folder_you_are_in(command: Command) -> None:
    Path("my_parts.py").write_text(
        "import torch\n"
        "def points(data_dir):\n"
        "    x = torch.randn(60, 4); y = (x[:, 0] > 0).long()\n"
        "    return (x[:40], y[:40]), (x[40:], y[40:])\n"
        "def line(shape, classes):\n"
        "    return torch.nn.Linear(shape[0], classes)\n"
    )
    told = command(
        "run", "--model", "my_parts:line", "--data", "my_parts:points", "--workers", "2",
        "--rounds", "1", "--strategy", "fedavg", "--out", "x",
    )  # fmt: skip
    assert (told[0], told[2]) == (0, "")
    sys.modules.pop("my_parts")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--rouns", "3"], "There is no flag --rouns; did you mean --rounds?"),
        (["--round=3"], "There is no flag --round; did you mean --rounds?"),
        (["--preste", "x"], "There is no flag --preste; did you mean --preset?"),
        (["--zzzzz"], "There is no flag --zzzzz; --help lists those there are."),
        (["--rounds", "3", "--rounds", "4"], "rounds is given twice, as '3' and as '4'."),
        (["--rounds", "x"], "rounds is 'x', but it must be a whole number, at least 1."),
        (["--rounds"], "argument --rounds: expected one argument; `adaptcl run --help` says more."),
        (["--sigma", "-1"], "sigma is -1.0, but it must be a number, at least 1."),
        (["--codec", "zip"], "codec is 'zip', but it must be one of " + ", ".join(CODECS) + OR_OWN),
        (["--strategy", "best"],
         "strategy is 'best', but it must be one of " + ", ".join(STRATEGIES) + OR_OWN),
        (["--strategy", "fedavg,"],
         "strategy is '', but it must be one of " + ", ".join(STRATEGIES) + OR_OWN),
        (["--strategy", "fedavg,fedavg"],
         "strategy is 'fedavg,fedavg', but it must not name a strategy twice."),
        (["--preset", "x"], "preset is 'x', but it must be one of " + ", ".join(presets()) + "."),
        (["absent.toml"], "The settings file absent.toml does not exist."),
        (["one.toml", "two.toml"], "'two.toml' is one word too many for this command."),
        (["--model", "big"], "There is no model 'big'; choose one of resnet50, small, vgg16, or "
         "give your own as package.module:factory."),
        (["--model", "nobody:nothing"], "There is no module nobody, where a model 'nobody:nothing' "
         "should be; is its folder on PYTHONPATH?"),
        (["--data", "cifar10"], "cifar10 needs a data folder: get it with `adaptcl data get "
         "cifar10 --data-dir DIR` and run with --data-dir DIR."),
        (["--device", "abacus"],
         "device is 'abacus', but PyTorch has no such device on this machine."),
        (["--data", "digits", "--bandwidths", "1,2,3"],
         "bandwidths has 3 entries, but it must have one for each of the 10 workers."),
        (["--data", "digits", "--trace", "absent.csv"],
         "trace: absent.csv cannot be read (No such file or directory)."),
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
    command: Command, words: list[str], sentence: str
) -> None:
    refused(command("run", "--out", "x", *words), sentence)
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("strategy", ["3", "[1, 2]", "true"])
def test_a_strategy_of_the_wrong_type_is_refused(command: Command, strategy: str) -> None:
    Path("my.toml").write_text(f"strategy = {strategy}\n")
    status, _, errors = command("run", "my.toml")
    assert status == 2
    assert errors.startswith("adaptcl: strategy is ")


def test_no_strategy_begins_where_another_has_run_already(command: Command, runs: Path) -> None:
    before = sorted(runs.rglob("*"))
    words = ("--strategy", "fedavg,adaptcl", "--out", str(runs / "both"))
    refused(
        command("run", *SMALL, *words),
        f"{runs / 'both' / 'adaptcl'} already holds a run; choose another folder, or go on with it "
        f"by `adaptcl resume {runs / 'both' / 'adaptcl'}`, from Python by resume=True.",
    )
    assert sorted(runs.rglob("*")) == before


def test_no_run_goes_around_others_or_others_into_a_run(command: Command, runs: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in runs.rglob("*")}
    refused(
        command("run", *SMALL, "--strategy", "fedavg", "--out", str(runs / "both")),
        f"{runs / 'both'} already holds runs (adaptcl, fedavg-s); choose another folder, or go on "
        f"with them by `adaptcl resume {runs / 'both'}`.",
    )
    refused(
        command("run", *SMALL, "--strategy", "fedavg,ssp-s", "--out", str(runs / "seed2")),
        f"{runs / 'seed2'} already holds a run; choose another folder, or go on with it by "
        f"`adaptcl resume {runs / 'seed2'}`, from Python by resume=True.",
    )
    assert {path: path.stat().st_mtime_ns for path in runs.rglob("*")} == before


def test_every_setting_has_a_flag_with_help(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        command("run", "--help")
    assert left.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for each in all_settings().values():
        assert each.flag in text
        # Words may be broken at a hyphen.
        assert each.help.replace("- ", "-") in text.replace("- ", "-")
    assert "number of rounds (T) [a whole number, at least 1; 16]" in text
    assert f"{all_settings()['strategy'].help}, or several with commas between [" in text


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["forecast", "--out", "x"], "There is no flag --out; --help lists those there are."),
        (["forecast", "--rouns", "3"], "There is no flag --rouns; did you mean --rounds?"),
        (["run", "--ot", "x"], "There is no flag --ot; did you mean --out?"),
        (["compare", "x", "--markdwon"], "There is no flag --markdwon; did you mean --markdown?"),
        (["compare", "x", "--rounds", "3"], "There is no flag --rounds; --help lists those there "
         "are."),
        (["server", "--tls", "x", "--sigma", "3"], "There is no flag --sigma; --help lists those "
         "there are."),
        (["--verson", "data"], "There is no flag --verson; did you mean --version?"),
        (["strategies", "fedavg"], "'fedavg' is one word too many for this command."),
    ],
)  # fmt: skip
def test_only_flags_that_the_command_has_are_suggested(
    command: Command, words: list[str], sentence: str
) -> None:
    refused(command(*words), sentence)


# Lists ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("strategies", STRATEGIES),
        ("prunings", ORDERS),
        ("codecs", CODECS),
        ("models", MODELS),
        ("presets", presets()),
        ("data", data.DATASETS),
    ],
)
def test_everything_with_a_name_is_listed(command: Command, what: str, names: Any) -> None:
    status, output, errors = command(what)
    assert (status, errors) == (0, "")
    listed = [line.split(maxsplit=1) for line in output.splitlines()]
    assert {name for name, _ in listed} == set(names)
    assert all(len(summary) > 5 for _, summary in listed)


def test_the_version_is_told(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command("--version")
    assert capsys.readouterr().out == f"adaptcl {__version__}\n"


def test_a_command_there_is_not_is_refused(command: Command) -> None:
    status, output, errors = command("rum")
    assert (status, output, errors.count("\n")) == (2, "", 1)
    assert "'rum'" in errors
    status, _, errors = command()
    assert (status, errors.count("\n")) == (2, 1)
