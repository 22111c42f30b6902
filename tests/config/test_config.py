"""The complete settings of a run."""

from __future__ import annotations

import dataclasses
import sys
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from adaptcl.codecs import CODECS
from adaptcl.config.config import SHARED_GROUPS, all_settings, configure, unknown_setting
from adaptcl.config.files import override, preset
from adaptcl.errors import SettingError
from adaptcl.settings import Setting, declared
from adaptcl.strategies import STRATEGIES


def test_the_defaults_are_the_papers_numbers() -> None:
    chosen = configure({})
    assert (chosen.job.workers, chosen.job.rounds) == (10, 150)
    assert (chosen.recipe.epochs, chosen.recipe.batch_size) == (2.0, 64)
    assert (chosen.strategy.pruning_interval, chosen.strategy.alpha) == (10, 2.0)
    assert (chosen.environment.sigma, chosen.environment.bandwidth_max) == (2.0, 5.0)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"rounds": 0}, "rounds is 0, but it must be a whole number, at least 1."),
        ({"partition": "fair"},
         "partition is 'fair', but it must be one of iid, by-label, dirichlet."),
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


def test_what_is_written_as_toml_is_read_as_the_same_configuration() -> None:
    values = {
        "rounds": 7,
        "learning_rate": 0.1 + 0.2,
        "bandwidths": [1.0, 2.0],
        "fixed": ["a*", 'quo"ted'],
        "pruned_rates": [[0.5, 0.25], [0.0, 0.125]],
        "data_dir": "C:\\some folder\\größe",
    }
    for strategy in STRATEGIES:
        for codec in CODECS:
            chosen = configure({**values, "strategy": strategy, "codec": codec})
            assert configure(tomllib.loads(chosen.to_toml())) == chosen


@pytest.mark.parametrize("first", STRATEGIES)
def test_with_the_file_of_a_run_another_strategy_has_its_own_defaults(first: str) -> None:
    written = tomllib.loads(configure({"strategy": first}).to_toml())
    for other in STRATEGIES:
        again, plain = configure({**written, "strategy": other}), configure({"strategy": other})
        assert again.strategy == plain.strategy


def test_the_file_of_a_run_keeps_what_its_strategy_was_given() -> None:
    for values in ({"strategy": "adaptcl", "fading": 0.4}, {"aggregation": "by-unit"}):
        chosen = configure(values)
        assert configure(tomllib.loads(chosen.to_toml())) == chosen
        assert tomllib.loads(chosen.to_toml())["adaptcl"].keys() == {"aggregation", "fading"}


def test_absolute_paths_mean_the_same_in_every_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for relative, absolute in (
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
    ):
        found = configure(relative).with_absolute_paths()
        for name, path in absolute.items():
            meant = path.replace("HERE/../", f"{tmp_path.parent}/").replace("HERE", str(tmp_path))
            assert found.values()[name] == meant
        assert {**found.values(), **relative} == configure(relative).values()
        assert found.with_absolute_paths() == found


def test_a_section_is_for_one_strategy_alone() -> None:
    values = {"strength": 0.1, "adaptcl": {"strength": 0.3}}
    assert configure({**values, "strategy": "adaptcl"}).recipe.strength == 0.3
    assert configure({**values, "strategy": "fedavg-s"}).recipe.strength == 0.1


@pytest.fixture
def careful(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a custom strategy that is derived from AdaptCL."""
    code = (
        "from adaptcl.strategies.adaptcl import AdaptCL\nclass Careful(AdaptCL): summary = 'mine'\n"
    )
    (tmp_path / "derived.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "derived", raising=False)
    return "derived:Careful"


def test_a_custom_strategy_reads_the_section_of_its_base_first(careful: str) -> None:
    values = {"strategy": careful, "adaptcl": {"strength": 0.3, "alpha": 3.0}}
    chosen = configure(values)
    assert (chosen.recipe.strength, chosen.strategy.alpha) == (0.3, 3.0)
    chosen = configure({**values, careful: {"strength": 0.4}})
    assert (chosen.recipe.strength, chosen.strategy.alpha) == (0.4, 3.0)
    chosen = configure({**preset("paper-cifar10-iid"), "strategy": careful})
    assert chosen.strategy.aggregation == "by-worker"


def test_a_value_on_top_wins_over_a_section_below_but_not_beside_it() -> None:
    lower = {"strategy": "adaptcl", "rounds": 5, "adaptcl": {"strength": 0.3, "alpha": 3.0}}
    on_top = configure(override(lower, {"strength": 0.2}))
    assert (on_top.recipe.strength, on_top.strategy.alpha, on_top.job.rounds) == (0.2, 3.0, 5)
    beside = configure(override(lower, {"strength": 0.2, "adaptcl": {"strength": 0.4}}))
    assert (beside.recipe.strength, beside.strategy.alpha) == (0.4, 3.0)


@pytest.mark.parametrize(
    ("section", "reason"),
    [
        (0.3, r"must head a table of settings, \[adaptcl\]"),
        ({"strenght": 0.3}, "did you mean 'strength'"),
        ({"strategy": "fedavg"}, "sets strategy, which is the same for all"),
        ({"workers": 3}, "sets workers, which is the same for all"),
        ({"codec": ["plain", "int8"]}, "`adaptcl compare A B` joins them"),
        ({"strength": 2.0}, "strength is 2.0"),
    ],
)
def test_a_section_that_is_wrong_is_refused(section: Any, reason: str) -> None:
    with pytest.raises(SettingError, match=reason):
        configure({"strategy": "fedavg", "adaptcl": section})


GROUPS: list[type] = [
    *SHARED_GROUPS,
    *(each.Settings for each in STRATEGIES.values()),
    *(each.Settings for each in CODECS.values()),
]
EVERY = [each for group in GROUPS for each in declared(group)]


def test_every_setting_has_help_and_a_default_that_it_allows() -> None:
    for each in EVERY:
        assert len(each.help) > 5
        assert each.help == each.help.strip()
        assert not each.help.endswith(".")
        assert each.checked(each.default) == each.default
        assert each.words


def test_every_field_of_a_group_is_a_setting() -> None:
    for group in GROUPS:
        fields = {each.name for each in dataclasses.fields(group)}
        assert fields == {each.name for each in declared(group)}


def test_settings_of_one_name_mean_the_same_everywhere() -> None:
    by_name: dict[str, list[Setting]] = defaultdict(list)
    for each in EVERY:
        by_name[each.name].append(each)
    for name, alike in by_name.items():
        # A strategy may have another default, as HeteroFL averages by unit, but no other meaning.
        assert len({(each.kind, each.help, each.allowed) for each in alike}) == 1, name


def test_no_setting_has_the_name_of_another_flag_or_argument() -> None:
    taken = {"file", "preset", "out", "command", "resume", "help", "train", "test", "listeners"}
    assert not taken & set(all_settings())


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("rouns", "There is no setting 'rouns'; did you mean 'rounds'? "),
        ("learning-rate", "There is no setting 'learning-rate'; did you mean 'learning_rate'? "),
        ("until", "There is no setting 'until'; did you mean 'max_virtual_time'? "),
        ("zzz", "There is no setting 'zzz'; "),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_there_is(name: str, sentence: str) -> None:
    with pytest.raises(SettingError) as refused:
        configure({name: 1})
    assert str(refused.value) == f"{sentence}`adaptcl run --help-all` lists them all."


def test_a_flag_that_is_no_setting_is_said_to_be_one() -> None:
    with pytest.raises(SettingError, match=r"'out' is no setting of a run; .* as --out"):
        configure({"out": "runs/mine"})


def test_a_name_with_a_missing_letter_is_recognised() -> None:
    for name in all_settings():
        mistyped = name[:-2] + name[-1:]
        if len(mistyped) > 4 and mistyped not in all_settings():
            assert "did you mean" in str(unknown_setting(mistyped)), mistyped
