"""Errors, warnings and the words they use."""

from __future__ import annotations

import torch

from adaptcl.errors import describe_type, suggest_instance


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
