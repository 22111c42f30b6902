from __future__ import annotations

import pytest

from adaptcl.config.catalogue import read_catalogue
from adaptcl.suggestions import _SETTINGS, hint_at_value, nearest_setting


@pytest.mark.parametrize(
    ("word", "setting"),
    [("lr", "learning_rate"), ("clients", "workers"), ("num_clients", "workers"),
     ("dataset", "data"), ("mu", "proximal"), ("leraning_rate", "learning_rate"), ("xyz", None)],
)  # fmt: skip
def test_a_word_of_another_framework_leads_to_the_setting(word: str, setting: str | None) -> None:
    assert nearest_setting(word, read_catalogue().settings) == setting


def test_every_foreign_word_leads_to_a_setting_and_is_none_itself() -> None:
    known = read_catalogue().settings
    assert {*_SETTINGS.values()} <= known.keys()
    assert not {*_SETTINGS} & known.keys()


@pytest.mark.parametrize(
    ("value", "hint"),
    [("adaptl", "; did you mean 'adaptcl'?"), ("FedAVG_S", "; did you mean 'fedavg-s'?"),
     ("fedprox", "; FedProx is 'fedavg' with the setting proximal, such as 0.01."),
     ("qqq", "."), (3, ".")],
)  # fmt: skip
def test_a_misspelled_value_gets_a_suggestion(value: object, hint: str) -> None:
    assert hint_at_value(value, ["fedavg", "fedavg-s", "adaptcl"]) == hint
