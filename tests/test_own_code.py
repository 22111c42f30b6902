from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from adaptcl.custom import call, custom_class, refuse_misdefined
from adaptcl.errors import DataError, SettingError


def two(one: int, other: int) -> int:
    return one - other


def refuse(factory: Callable[..., Any]) -> None:
    refuse_misdefined("mine:build", factory, ("one", "other"), "a number")


@pytest.mark.parametrize(
    "factory",
    [two, partial(two), lambda *given: 1, lambda a, b, c=3: 1, complex, range, max],
)
def test_whatever_can_be_called_so_is_taken(factory: Callable[..., Any]) -> None:
    refuse(factory)
    call("mine:build", factory, 3, 2)


@pytest.mark.parametrize(
    ("factory", "defined"),
    [
        (lambda: 1, "build()"),
        (lambda a: 1, "build(a)"),
        (lambda a, b, c: 1, "build(a, b, c)"),
        (lambda a, b, *, c: 1, "build(a, b, *, c)"),
        (lambda *, one, other: 1, "build(*, one, other)"),
    ],
)
def test_whatever_cannot_is_refused_with_what_it_would_be_called_with(
    factory: Callable[..., Any], defined: str
) -> None:
    with pytest.raises(SettingError) as refused:
        refuse(factory)
    assert str(refused.value) == (
        "mine:build is called as build(one, other) and must return a number, but it is defined "
        f"as {defined}."
    )


def test_a_sentence_of_ours_raised_inside_a_factory_gets_no_note() -> None:
    def build() -> None:
        raise DataError("There are no samples.")

    with pytest.raises(DataError) as refused:
        call("mine:build", build)
    assert not hasattr(refused.value, "__notes__")


class Empty:
    """Has nothing of what is asked for."""


def test_what_a_class_lacks_is_named_once() -> None:
    class Like:
        summary: str

    with pytest.raises(SettingError) as refused:
        custom_class(f"{__name__}:Empty", "a strategy", (), Like, Like)
    assert str(refused.value) == f"{__name__}:Empty cannot be a strategy: it has no summary."
