"""Errors, warnings and the words they use."""

from __future__ import annotations

import pytest
import torch

from adaptcl.errors import describe_type, listed, name_workers, suggest_instance


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
