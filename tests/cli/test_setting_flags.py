"""Flags of settings: help, spelling and values."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from adaptcl import __version__
from adaptcl.cli.parser import command_line
from adaptcl.cli.setting_flags import COMMON
from adaptcl.codecs import CODECS
from adaptcl.config.config import all_settings
from adaptcl.config.files import presets
from adaptcl.strategies import STRATEGIES

Command = Callable[..., tuple[int, str, str]]
Refused = Callable[[list[str], str], None]

OR_CUSTOM = ", or your own as package.module:Class."


@pytest.fixture
def shown(command: Command, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What a command prints before it exits, with single spaces."""

    def show(*words: str) -> str:
        with pytest.raises(SystemExit) as left:
            command(*words)
        assert left.value.code == 0
        # Words may be broken at a hyphen.
        return " ".join(capsys.readouterr().out.split()).replace("- ", "-")

    return show


def test_help_leaves_it_to_the_brackets_to_say_the_default() -> None:
    for each in all_settings().values():
        assert not re.search(r"\bempty\b|unless a preset says", each.help), each.name


def test_all_settings_have_a_flag_with_help(shown: Callable[..., str]) -> None:
    text = shown("run", "--help-all")
    for each in all_settings().values():
        assert (f"{each.flag}, --no-" if each.kind is bool else f"{each.flag} X") in text
        assert each.help.replace("- ", "-") in text
    assert "number of rounds (T) [a whole number, at least 1; default 16]" in text
    assert "default by-worker, with adaptcl by-change, with heterofl by-unit" in text


@pytest.mark.parametrize(("word", "grow"), [("--grow", True), ("--no-grow", False)])
def test_what_is_true_or_false_is_a_flag_and_takes_no_other_word(word: str, grow: bool) -> None:
    options = command_line().parse_args(["run", word, "my.toml"])
    assert (options.flags, options.file) == ({"grow": grow}, "my.toml")


def test_help_shows_the_settings_that_most_people_need_under_headings(
    shown: Callable[..., str],
) -> None:
    text = shown("run", "--help")
    flags = set(re.findall(r"(--[a-z-]+) X", text))
    assert flags == {"--until", *("--" + name.replace("_", "-") for name in COMMON)}
    headings = " job: .* data: .* training: .* pruning \\(strategy adaptcl\\): .* environment: "
    assert re.search(headings, text)
    assert "collaborative learning; several, with commas between, make a run each [" in text


def test_the_version_is_shown(shown: Callable[..., str]) -> None:
    assert shown("--version") == f"adaptcl {__version__}"


def test_flags_become_values() -> None:
    words = ["run", "--rounds", "3", "--bandwidths=1,2", "--seed", "1,2", "--strategy", "fedavg"]
    assert command_line().parse_args(words).flags == {
        "rounds": 3,
        "bandwidths": (1.0, 2.0),
        "seed": [1, 2],
        "strategy": "fedavg",
    }


def test_a_sweep_takes_several_values_with_commas_between() -> None:
    words = ["sweep", "--sigma", "2,4", "--codec=plain,int8", "--until", "90min,2h", "--links",
             "fiber,4g", "--model", "small,mine:build", "--target", "none,0.5"]  # fmt: skip
    assert command_line().parse_args(words).flags == {
        "sigma": [2.0, 4.0],
        "codec": ["plain", "int8"],
        "max_virtual_time": [5400.0, 7200.0],
        "links": ("fiber", "4g"),
        "model": ["small", "mine:build"],
        "target": [None, 0.5],
    }
    # A text of a run, such as a path, may have a comma.
    assert command_line().parse_args(["run", "--data-dir", "a,b"]).flags == {"data_dir": "a,b"}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["run", "--sigma", "2,4"], "sigma is [2.0, 4.0], but a run has one value; `adaptcl sweep` "
         "makes a run for each of several."),
        (["sweep", "--sigma", "2,x"], "sigma is 'x', but it must be a number, at least 1."),
        (["run", "--rouns", "3"], "There is no flag --rouns; did you mean --rounds?"),
        (["run", "--round=3"], "There is no flag --round; did you mean --rounds?"),
        (["run", "--preste", "x"], "There is no flag --preste; did you mean --preset?"),
        (["run", "--ot", "x"], "There is no flag --ot; did you mean --out?"),
        (["run", "--zzzzz"], "There is no flag --zzzzz; --help lists those there are."),
        (["forecast", "--zzz", "x"], "There is no flag --zzz; --help lists those there are."),
        (["compare", "x", "--markdwon"], "There is no flag --markdwon; did you mean --markdown?"),
        (["compare", "x", "--gamma", "3"], "There is no flag --gamma; --help lists those there "
         "are."),
        (["server", "--tls", "x", "--sigma", "3"], "There is no flag --sigma; --help lists those "
         "there are."),
        (["--verson", "data"], "There is no flag --verson; did you mean --version?"),
        (["rnu"], "There is no command 'rnu'; did you mean 'run'?"),
        (["help"], "`adaptcl --help` lists the commands; `adaptcl COMMAND --help` tells of one."),
        (["run", "--resume"], "There is no flag --resume; `adaptcl resume RUN` continues a run."),
        (["run", "--no-figures"], "There is no flag --no-figures; `--figures none` draws none."),
        (["dance"], "There is no command 'dance'; `adaptcl --help` lists them all."),
        ([], "the following arguments are required: COMMAND; `adaptcl --help` says more."),
        (["strategies", "fedavgs"],
         "'fedavgs' is not one of the strategies; did you mean 'fedavg-s'?"),
        (["run", "--lr", "1"], "There is no flag --lr; did you mean --learning-rate?"),
        (["run", "--num-clients", "3"], "There is no flag --num-clients; did you mean --workers?"),
        (["run", "--grow=true"], "argument --grow/--no-grow: ignored explicit argument 'true'; "
         "`adaptcl run --help` says more."),
        (["run", "--strategy", "fedprox"],
         f"strategy is 'fedprox', but it must be one of {', '.join(STRATEGIES)}, or your own as "
         "package.module:Class; FedProx is 'fedavg' with the setting proximal, such as 0.01."),
        (["run", "one.toml", "two.toml"], "'two.toml' was not expected; see `adaptcl run --help`."),
        (["run", "--rounds", "x"], "rounds is 'x', but it must be a whole number, at least 1."),
        (["run", "--rounds"],
         "argument --rounds: expected one argument; `adaptcl run --help` says more."),
        (["run", "--sigma", "-1"], "sigma is -1.0, but it must be a number, at least 1."),
        (["run", "--seed", "1,x"], "seed is 'x', but it must be a whole number, at least 0 and at "
         f"most {2**63 - 1}."),
        (["run", "--codec", "zip"],
         "codec is 'zip', but it must be one of " + ", ".join(CODECS) + OR_CUSTOM),
        (["run", "--strategy", "fedavg,best"],
         "strategy is 'best', but it must be one of " + ", ".join(STRATEGIES) + OR_CUSTOM),
        (["run", "--strategy", "fedavg,"],
         "strategy is '', but it must be one of " + ", ".join(STRATEGIES) + OR_CUSTOM),
        (["run", "--preset", "x"],
         "preset is 'x', but it must be one of " + ", ".join(presets()) + "."),
    ],
)  # fmt: skip
def test_a_mistake_in_a_command_line_is_refused_in_one_sentence(
    refused: Refused, words: list[str], sentence: str
) -> None:
    refused(words, sentence)


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        ("300", 300),
        ("300s", 300),
        ("90min", 5400),
        ("1.5h", 5400),
        ("1h 30min", 5400),
        ("0", 0),
        ("90 minutes", 5400),
        ("1hour 2sec", 3602),
    ],
)
def test_a_time_limit_is_in_seconds_or_in_words(words: str, seconds: float) -> None:
    for flag in ("--until", "--max-virtual-time"):
        options = command_line().parse_args(["run", flag, words])
        assert options.flags == {"max_virtual_time": seconds}


@pytest.mark.parametrize("words", ["soon", "90 months", "1h-3s", "1.2.3h", "min", "-5.0", "inf"])
def test_a_time_limit_that_is_none_is_refused(words: str, refused: Refused) -> None:
    shown = words if words in ("-5.0", "inf") else repr(words)
    refused(
        ["run", f"--until={words}"],
        f"--until is {shown}, but it must be a number of seconds, at least 0, or a "
        "time such as 300s, 90min or 2h.",
    )


def test_of_a_flag_that_is_given_twice_the_last_one_counts() -> None:
    words = ["run", "--until", "1h", "--max-virtual-time", "60"]
    assert command_line().parse_args(words).flags == {"max_virtual_time": 60}
