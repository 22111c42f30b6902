from __future__ import annotations

import pytest
import torch

from adaptcl.errors import suggest_instance, describe_type


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (3, "an int"),
        ("three", "a str"),
        (OSError(), "an OSError"),
        (torch.zeros(1), "a Tensor"),
        (None, "None"),
        (torch.nn.Linear, "the class Linear"),
    ],
)
def test_the_kind_of_a_value_has_its_article(value: object, words: str) -> None:
    assert describe_type(value) == words


def test_only_a_class_is_to_be_replaced_by_an_instance() -> None:
    assert suggest_instance(3) == ""
    assert suggest_instance(dict) == "; give an instance: dict() instead of dict"
