"""Errors, warnings and the words they use."""

from __future__ import annotations

import pytest
import torch

from adaptcl.config.catalogue import read_catalogue
from adaptcl.errors import (
    _SETTINGS,
    describe_type,
    hint_at_value,
    listed,
    name_workers,
    nearest_setting,
    suggest_instance,
)


def test_the_type_of_a_value_has_an_article() -> None:
    for value, words in [
        (3, "an int"),
        ("three", "a str"),
        (OSError(), "an OSError"),
        (torch.zeros(1), "a Tensor"),
        (None, "None"),
        (torch.nn.Linear, "the class Linear"),
    ]:
        assert describe_type(value) == words


def test_an_instance_is_suggested_only_for_a_class() -> None:
    assert suggest_instance(3) == ""
    assert suggest_instance(dict) == "; give an instance: dict() instead of dict"


@pytest.mark.parametrize(
    ("workers", "words"),
    [
        ({3}, "worker 3"),
        ({3, 2}, "workers 2 and 3"),
        ({4, 0, 7}, "workers 0, 4 and 7"),
        (set(range(100)), "workers 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 90 others"),
    ],
)
def test_workers_are_named_by_their_numbers(workers: set[int], words: str) -> None:
    assert name_workers(workers) == words


def test_a_list_that_is_too_long_is_cut() -> None:
    assert listed("abc", most=3) == "a, b, c"
    assert listed("abcd", most=3) == "a, b, c, …"


# Suggestions -----------------------------------------------------------------------------------


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
