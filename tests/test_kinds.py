from __future__ import annotations

import pytest
import torch

from adaptcl.errors import instead_of_class, kind_of


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
    assert kind_of(value) == words


def test_only_a_class_is_to_be_replaced_by_an_instance() -> None:
    assert instead_of_class(3) == ""
    assert instead_of_class(dict) == "; give an instance: dict() instead of dict"
