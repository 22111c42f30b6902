from __future__ import annotations

import dataclasses
import math
import sys
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptcl import config
from adaptcl.codecs import CODECS
from adaptcl.config import (
    JobSettings,
    all_settings,
    configure,
    departures,
    over,
    preset,
    presets,
    read_toml,
)
from adaptcl.engines.environment import EnvironmentSettings
from adaptcl.errors import SettingError
from adaptcl.settings import Setting, declared
from adaptcl.strategies import STRATEGIES
from adaptcl.training import Recipe

GROUPS: dict[str, type] = {
    "job": JobSettings,
    "recipe": Recipe,
    "environment": EnvironmentSettings,
    **{f"strategy {name}": each.Settings for name, each in STRATEGIES.items()},
    **{f"codec {name}": each.Settings for name, each in CODECS.items()},
}
EVERY = [(group, each) for group, kind in GROUPS.items() for each in declared(kind)]


# The declarations ------------------------------------------------------------------------------


@pytest.mark.parametrize(("group", "each"), EVERY, ids=lambda v: getattr(v, "name", str(v)))
def test_every_setting_has_help_and_a_default_that_it_allows(group: str, each: Setting) -> None:
    assert len(each.help) > 5
    assert each.help == each.help.strip()
    assert not each.help.endswith(".")
    assert each.checked(each.default) == each.default
    assert each.words


@pytest.mark.parametrize("kind", GROUPS.values(), ids=list(GROUPS))
def test_every_field_of_a_group_is_a_setting(kind: type) -> None:
    assert {f.name for f in dataclasses.fields(kind)} == {each.name for each in declared(kind)}


def test_settings_of_one_name_mean_the_same_everywhere() -> None:
    by_name: dict[str, list[Setting]] = defaultdict(list)
    for _, each in EVERY:
        by_name[each.name].append(each)
    for name, alike in by_name.items():
        # A strategy may have its own default, as HeteroFL averages by unit; never its own meaning.
        kinds = {(each.kind, each.help, each.allowed) for each in alike}
        assert len(kinds) == 1, name


def test_no_setting_has_the_name_of_something_else_on_the_command_line() -> None:
    taken = {"file", "preset", "out", "command", "resume", "help", "train", "test", "listeners"}
    assert not taken & set(all_settings())


def test_the_defaults_are_the_papers_numbers() -> None:
    chosen = configure({})
    assert (chosen.job.workers, chosen.job.rounds) == (10, 150)
    assert (chosen.recipe.epochs, chosen.recipe.batch_size) == (2.0, 64)
    assert (chosen.strategy.pruning_interval, chosen.strategy.alpha) == (10, 2.0)
    assert (chosen.environment.sigma, chosen.environment.bandwidth_max) == (2.0, 5.0)


# Names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("rouns", "There is no setting 'rouns'; did you mean 'rounds'?"),
        ("learning-rate", "There is no setting 'learning-rate'; did you mean 'learning_rate'?"),
        ("prunning", "There is no setting 'prunning'; did you mean 'pruning'?"),
        ("zzz", "There is no setting 'zzz'; `adaptcl run --help` lists them all."),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_there_is(name: str, sentence: str) -> None:
    with pytest.raises(SettingError) as refused:
        configure({name: 1})
    assert str(refused.value) == sentence


@pytest.mark.parametrize("name", all_settings())
def test_a_name_with_a_letter_missing_is_recognised(name: str) -> None:
    for place in range(1, len(name)):
        mistyped = name[:place] + name[place + 1 :]
        if len(mistyped) > 4 and mistyped not in all_settings():
            assert "did you mean" in str(config.unknown_setting(mistyped)), mistyped


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"rounds": 0}, "rounds is 0, but it must be a whole number, at least 1."),
        ({"rounds": "5"}, "rounds is '5', but it must be a whole number, at least 1."),
        ({"beta": 1.5}, "beta is 1.5, but it must be a number, at least 0 and at most 1."),
        ({"sigma": math.inf}, "sigma is inf, but it must be a number, at least 1."),
        ({"partition": "fair"},
         "partition is 'fair', but it must be one of iid, by-label, dirichlet."),
        ({"bandwidths": [1, 0]},
         "bandwidths is [1, 0], but it must be a list of numbers, above 0."),
        ({"augmentation": 1}, "augmentation is 1, but it must be true or false."),
        ({"seed": 2**63}, "seed is 9223372036854775808, but it must be a whole number, at least 0 "
         "and at most 9223372036854775807."),
    ],
)  # fmt: skip
def test_a_value_that_is_not_allowed_is_refused(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingError) as refused:
        configure(values)
    assert str(refused.value) == sentence


def test_what_another_strategy_sets_is_checked_and_then_left_out() -> None:
    chosen = configure({"strategy": "fedavg", "pruning_interval": 3})
    assert "pruning_interval" not in chosen.values()
    with pytest.raises(SettingError, match="pruning_interval is 0"):
        configure({"strategy": "fedavg", "pruning_interval": 0})


# TOML ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("codec", CODECS)
def test_what_is_written_as_toml_is_read_as_the_same_configuration(
    strategy: str, codec: str, tmp_path: Path
) -> None:
    values = {
        "strategy": strategy,
        "codec": codec,
        "rounds": 7,
        "learning_rate": 0.1 + 0.2,
        "bandwidths": [1.0, 2.0],
        "fixed": ["a*", 'quo"ted'],
        "pruned_rates": [[0.5, 0.25], [0.0, 0.125]],
        "data_dir": "C:\\some folder\\größe",
    }
    chosen = configure(values)
    (tmp_path / "config.toml").write_text(chosen.to_toml(), encoding="utf-8")
    assert configure(read_toml(tmp_path / "config.toml")) == chosen
    assert configure(tomllib.loads(chosen.to_toml())) == chosen


@given(st.floats(1e-12, 1e12), st.integers(0, 2**63 - 1), st.text(max_size=20))
def test_no_number_or_text_is_changed_on_its_way_through_toml(
    rate: float, seed: int, text: str
) -> None:
    chosen = configure({"learning_rate": rate, "seed": seed, "data_dir": text})
    assert configure(tomllib.loads(chosen.to_toml())) == chosen


@pytest.mark.parametrize(
    ("given", "anchored"),
    [
        ({"data_dir": "images"}, {"data_dir": "HERE/images"}),
        ({"data_dir": "../images"}, {"data_dir": "HERE/../images"}),
        ({"data_dir": "/images"}, {"data_dir": "/images"}),
        ({"data_dir": ""}, {"data_dir": ""}),
        ({"trace": "link.csv"}, {"trace": "HERE/link.csv"}),
        ({"trace": ""}, {"trace": ""}),
        ({"data": "folder:images"}, {"data": "folder:HERE/images"}),
        ({"data": "my.npz"}, {"data": "HERE/my.npz"}),
        ({"data": "cifar10"}, {"data": "cifar10"}),
        ({"data": "my.module:load"}, {"data": "my.module:load"}),
    ],
)
def test_an_anchored_configuration_means_the_same_in_every_folder(
    given: dict[str, str], anchored: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = configure(given).anchored()
    for name, path in anchored.items():
        meant = path.replace("HERE/../", f"{tmp_path.parent}/").replace("HERE", str(tmp_path))
        assert found.values()[name] == meant
    assert {**found.values(), **given} == configure(given).values()
    assert found.anchored() == found


def test_a_file_stands_on_the_default_preset(tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text("rounds = 3\n")
    assert read_toml(tmp_path / "my.toml") == {**preset("default"), "rounds": 3}


@pytest.mark.parametrize("strategy", ["adaptcl", "heterofl", "fedavg-s", "adaptcl, fedavg-s"])
@pytest.mark.parametrize("name", presets())
def test_the_settings_of_a_run_depart_from_its_preset_in_nothing(
    tmp_path: Path, name: str, strategy: str
) -> None:
    first = strategy.partition(",")[0]
    chosen = configure({**preset(name), "strategy": first})
    (tmp_path / "config.toml").write_text(chosen.to_toml().replace(f'"{first}"', f'"{strategy}"'))
    assert departures(tmp_path / "config.toml", name) == []


def test_a_section_is_for_one_strategy_alone() -> None:
    values = {"strength": 0.1, "adaptcl": {"strength": 0.3}}
    assert configure({**values, "strategy": "adaptcl"}).recipe.strength == 0.3
    assert configure({**values, "strategy": "fedavg-s"}).recipe.strength == 0.1


@pytest.fixture
def careful(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a strategy of the user's own that is derived from AdaptCL."""
    code = (
        "from adaptcl.strategies.adaptcl import AdaptCL\nclass Careful(AdaptCL): summary = 'mine'\n"
    )
    (tmp_path / "derived.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "derived", raising=False)
    return "derived:Careful"


def test_a_strategy_derived_from_ours_reads_its_section_before_its_own(careful: str) -> None:
    values = {"strategy": careful, "adaptcl": {"strength": 0.3, "alpha": 3.0}}
    chosen = configure(values)
    assert (chosen.recipe.strength, chosen.strategy.alpha) == (0.3, 3.0)
    chosen = configure({**values, careful: {"strength": 0.4}})
    assert (chosen.recipe.strength, chosen.strategy.alpha) == (0.4, 3.0)
    chosen = configure({**preset("paper-cifar10-iid"), "strategy": careful})
    assert chosen.strategy.aggregation == "by-worker"


def test_what_is_said_on_top_wins_against_a_section_below_but_not_beside_it() -> None:
    lower = {"strategy": "adaptcl", "rounds": 5, "adaptcl": {"strength": 0.3, "alpha": 3.0}}
    on_top = configure(over(lower, {"strength": 0.2}))
    assert (on_top.recipe.strength, on_top.strategy.alpha, on_top.job.rounds) == (0.2, 3.0, 5)
    beside = configure(over(lower, {"strength": 0.2, "adaptcl": {"strength": 0.4}}))
    assert (beside.recipe.strength, beside.strategy.alpha) == (0.4, 3.0)


@pytest.mark.parametrize(
    ("section", "reason"),
    [
        (0.3, r"must head a table of settings, \[adaptcl\]"),
        ({"strenght": 0.3}, "did you mean 'strength'"),
        ({"strategy": "fedavg"}, "sets strategy, which is the same for all"),
        ({"workers": 3}, "sets workers, which is the same for all"),
        ({"strength": 2.0}, "strength is 2.0"),
    ],
)
def test_a_section_that_is_wrong_is_refused(section: Any, reason: str) -> None:
    with pytest.raises(SettingError, match=reason):
        configure({"strategy": "fedavg", "adaptcl": section})


def test_a_file_may_name_its_preset_and_the_caller_overrule_it(tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    file.write_text('preset = "paper-cifar10-iid"\nrounds = 3\n')
    assert read_toml(file) == {**preset("paper-cifar10-iid"), "rounds": 3}
    overruled = read_toml(file, "paper-tiny-imagenet-iid")
    assert overruled == {**preset("paper-tiny-imagenet-iid"), "rounds": 3}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"rounds = \n", "The settings file {} is not TOML: Invalid value (at line 1, column 10)."),
        (b"rounds = 3\nrounds = 4\n",
         "The settings file {} is not TOML: Cannot overwrite a value (at line 2, column 11)."),
        (b"model = '\xff'\n", "The settings file {} is not TOML: 'utf-8' codec can't decode byte "
         "0xff in position 9: invalid start byte."),
        (b"preset = 'best'\n", "preset is 'best', but it must be one of " + ", ".join(presets())
         + "."),
        (b"preset = 3\n", "preset is 3, but it must be one of " + ", ".join(presets()) + "."),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_understood_is_refused_in_one_sentence(
    tmp_path: Path, content: bytes, sentence: str
) -> None:
    file = tmp_path / "my.toml"
    file.write_bytes(content)
    with pytest.raises(SettingError) as refused:
        read_toml(file)
    assert str(refused.value) == sentence.format(file)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"my\.toml does not exist\.$"):
        read_toml(tmp_path / "my.toml")
    with pytest.raises(SettingError, match=r"cannot be read: Is a directory\.$"):
        read_toml(tmp_path)


def test_tables_are_no_settings(tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text("[training]\nepochs = 1\n")
    with pytest.raises(SettingError, match="There is no setting 'training'"):
        configure(read_toml(tmp_path / "my.toml"))


# Presets ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", presets())
def test_every_preset_configures_and_says_what_it_is_for(name: str) -> None:
    values = preset(name)
    chosen = configure(values)
    own = values.pop(chosen.job.strategy, {})
    for key, value in {**values, **own}.items():
        assert key in chosen.values(), f"{key} of {name} has no effect"
        written = tomllib.loads(chosen.to_toml())[key]
        assert written == value
    assert 20 < len(config.preset_summary(name)) < 200
    assert config.preset_summary(name).endswith(".")


@pytest.mark.parametrize("name", [n for n in presets() if n.startswith("paper")])
def test_a_paper_preset_has_the_papers_configuration(name: str) -> None:
    chosen = configure(preset(name))
    tiny = "tiny-imagenet" in name
    assert (chosen.job.workers, chosen.job.rounds) == (10, 250 if tiny else 150)
    assert (chosen.recipe.epochs, chosen.recipe.learning_rate) == ((1, 0.1) if tiny else (2, 0.01))
    assert (chosen.recipe.batch_size, chosen.recipe.weight_decay) == (64, 5e-4)
    assert chosen.recipe.beta == 1.0
    assert not chosen.recipe.augmentation
    assert chosen.job.partition == ("by-label" if "non-iid" in name else "iid")
    assert chosen.job.model == ("resnet50" if tiny else "vgg16")
    assert (chosen.strategy.pruning_interval, chosen.strategy.alpha) == (10, 2.0)
    assert (chosen.strategy.pruning, chosen.strategy.aggregation) == ("cig-bnscalor", "by-worker")
    strong = "cifar10-" in name or name in ("paper-cifar100-iid", "paper-pruned-rates")
    assert chosen.recipe.strength == (0.9 if strong else 0.1)


@pytest.mark.parametrize("name", presets())
def test_no_preset_changes_how_heterofl_merges(name: str) -> None:
    chosen = configure({**preset(name), "strategy": "heterofl"})
    assert chosen.strategy.aggregation == "by-unit"
