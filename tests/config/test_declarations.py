"""The declarations of all settings."""

from __future__ import annotations

import dataclasses
from collections import defaultdict

import pytest

from adaptcl.codecs import CODECS
from adaptcl.config import all_settings, configure, unknown_setting
from adaptcl.config.declarations import SHARED_GROUPS
from adaptcl.errors import SettingError
from adaptcl.settings import Setting, declared
from adaptcl.strategies import STRATEGIES

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
        ("rouns", "There is no setting 'rouns'; did you mean 'rounds'?"),
        ("learning-rate", "There is no setting 'learning-rate'; did you mean 'learning_rate'?"),
        ("zzz", "There is no setting 'zzz'; `adaptcl run --help-all` lists them all."),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_there_is(name: str, sentence: str) -> None:
    with pytest.raises(SettingError) as refused:
        configure({name: 1})
    assert str(refused.value) == sentence


def test_a_name_with_a_missing_letter_is_recognised() -> None:
    for name in all_settings():
        mistyped = name[:-2] + name[-1:]
        if len(mistyped) > 4 and mistyped not in all_settings():
            assert "did you mean" in str(unknown_setting(mistyped)), mistyped
