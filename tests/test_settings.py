from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptcl.errors import SettingError
from adaptcl.settings import (
    Seconds,
    Setting,
    When,
    build,
    declared,
    redeclared,
    setting,
)


@dataclass(frozen=True)
class Oven:
    """A group with a setting of every kind."""

    degrees: int = setting(180, "how hot", at_least=50, at_most=300)
    hours: float = setting(1.5, "how long", above=0, below=24)
    fan: bool = setting(False, "whether air moves")
    dish: str = setting("cake", "what is baked", choices=("cake", "bread"))
    note: str = setting("", "anything else")
    trays: tuple[int, ...] = setting((), "tiles of each tray", at_least=1)
    shares: tuple[float, ...] = setting((), "of the heat", at_least=0, at_most=1)
    plan: tuple[tuple[float, ...], ...] = setting((), "of many days", at_least=0, below=1)
    names: tuple[str, ...] = setting((), "who eats")
    dishes: tuple[str, ...] = setting((), "on each tray", choices=("cake", "bread"))
    limit: int | None = setting(None, "pieces at most", at_least=1)
    rest: Seconds = setting(0.0, "until it is cut", at_least=0)
    secret: int = 7
    """Not a setting."""


OVEN: dict[str, Setting] = {each.name: each for each in declared(Oven)}


def test_a_group_declares_its_settings_in_order() -> None:
    assert list(OVEN) == [
        "degrees", "hours", "fan", "dish", "note", "trays", "shares", "plan", "names", "dishes",
        "limit", "rest",
    ]  # fmt: skip
    assert OVEN["hours"].help == "how long"
    assert OVEN["hours"].default == 1.5
    assert Setting("max_rate", int, 1, "", OVEN["degrees"].allowed).flag == "--max-rate"


@pytest.mark.parametrize(
    ("name", "value", "taken"),
    [
        ("degrees", 50, 50),
        ("degrees", np.int64(200), 200),
        ("hours", 2, 2.0),
        ("hours", np.float32(0.5), 0.5),
        ("fan", True, True),
        ("dish", "bread", "bread"),
        ("trays", [3, 4], (3, 4)),
        ("trays", (), ()),
        ("trays", "3, 4", (3, 4)),
        ("shares", [0, 0.5, 1], (0.0, 0.5, 1.0)),
        ("plan", [[0.5], [0, 0.25]], ((0.5,), (0.0, 0.25))),
        ("names", ["a", "b"], ("a", "b")),
        ("dishes", "cake,bread", ("cake", "bread")),
        ("limit", None, None),
        ("limit", 3, 3),
        ("rest", 90, 90.0),
        ("rest", "1h 30min", 5400.0),
    ],
)
def test_a_value_of_the_right_type_and_range_is_taken(name: str, value: Any, taken: Any) -> None:
    checked = OVEN[name].checked(value)
    assert checked == taken
    assert type(checked) is type(taken)


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("degrees", 301, "degrees is 301, but it must be a whole number, at least 50 and at most "
         "300."),
        ("degrees", 200.0, "degrees is 200.0, but it must be a whole number, at least 50 and at "
         "most 300."),
        ("degrees", True, "degrees is True, but it must be a whole number, at least 50 and at most "
         "300."),
        ("degrees", None, "degrees is None, but it must be a whole number, at least 50 and at most "
         "300."),
        ("hours", 0, "hours is 0, but it must be a number, above 0 and below 24."),
        ("hours", 24.0, "hours is 24.0, but it must be a number, above 0 and below 24."),
        ("hours", "1", "hours is '1', but it must be a number, above 0 and below 24."),
        ("hours", math.nan, "hours is nan, but it must be a number, above 0 and below 24."),
        ("fan", 1, "fan is 1, but it must be true or false."),
        ("dish", "soup", "dish is 'soup', but it must be one of cake, bread."),
        ("dish", 3, "dish is 3, but it must be one of cake, bread."),
        ("note", 3, "note is 3, but it must be text."),
        ("trays", 3, "trays is 3, but it must be a list of whole numbers, at least 1."),
        ("trays", [3, 0], "trays is [3, 0], but it must be a list of whole numbers, at least 1."),
        ("trays", "3,x", "trays is '3,x', but it must be a list of whole numbers, at least 1."),
        ("plan", [0.5], "plan is [0.5], but it must be a list of lists of numbers, at least 0 and "
         "below 1."),
        ("dishes", ["cake", "bred"], "dishes is ['cake', 'bred'], but it must be a list, each "
         "entry one of cake, bread; did you mean 'bread'?"),
        ("dishes", ("bred",), "dishes is ['bred'], but it must be a list, each entry one of cake, "
         "bread; did you mean 'bread'?"),
        ("limit", 0, "limit is 0, but it must be a whole number or none, at least 1."),
        ("rest", "soon", "rest is 'soon', but it must be a number of seconds, at least 0, or a "
         "time such as 300s, 90min or 2h."),
    ],
)  # fmt: skip
def test_anything_else_is_refused_in_a_sentence_with_key_value_and_what_is_allowed(
    name: str, value: Any, sentence: str
) -> None:
    with pytest.raises(SettingError) as refused:
        OVEN[name].checked(value)
    assert str(refused.value) == sentence


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 10**400])
def test_no_number_without_end_is_ever_allowed(value: float) -> None:
    open_ended = Setting("x", float, 0.0, "", OVEN["note"].allowed)
    with pytest.raises(SettingError):
        open_ended.checked(value)
    with pytest.raises(SettingError):
        Setting("x", tuple[float, ...], (), "", OVEN["note"].allowed).checked([1.0, value])


@pytest.mark.parametrize(
    ("name", "word", "meant"),
    [
        ("degrees", "200", 200),
        ("hours", "2", 2.0),
        ("hours", "5e-1", 0.5),
        ("fan", "True", True),
        ("fan", "false", False),
        ("note", "none", "none"),
        ("trays", "1,2, 3", (1, 2, 3)),
        ("trays", "", ()),
        ("trays", "1,2,", (1, 2)),
        ("shares", "0.5", (0.5,)),
        ("plan", "0.5,0.25;0,0", ((0.5, 0.25), (0.0, 0.0))),
        ("plan", "[[0.5, 0.25], [0, 0]]", ((0.5, 0.25), (0.0, 0.0))),
        ("trays", "[1, 2]", (1, 2)),
        ("names", "a, b", ("a", "b")),
        ("limit", "none", None),
        ("limit", "4", 4),
    ],
)
def test_a_word_of_the_command_line_means_a_value(name: str, word: str, meant: Any) -> None:
    assert OVEN[name].parse(word) == meant


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("degrees", "hot"), ("degrees", "200.0"), ("degrees", "10"), ("hours", "nan"),
        ("hours", "inf"), ("fan", "yes"), ("dish", "soup"), ("trays", "1,x"), ("trays", "1,0"),
        ("names", "a,,b"), ("trays", "1,,2"),
        ("plan", "0.5;x"), ("limit", "0"),
    ],
)  # fmt: skip
def test_a_word_that_means_no_allowed_value_is_refused(name: str, word: str) -> None:
    with pytest.raises(SettingError, match=f"^{name} is .*, but it must be "):
        OVEN[name].parse(word)


def test_a_setting_declared_again_differs_in_its_default_alone() -> None:
    @dataclass(frozen=True)
    class Stove(Oven):
        hours: float = redeclared(Oven, "hours", 0.5)

    again = {each.name: each for each in declared(Stove)}
    assert list(again) == list(OVEN)
    assert again["hours"].default == 0.5
    assert (again["hours"].help, again["hours"].allowed) == ("how long", OVEN["hours"].allowed)
    assert {k: v for k, v in again.items() if k != "hours"} == {
        k: v for k, v in OVEN.items() if k != "hours"
    }


def test_a_group_is_built_from_those_values_that_are_its_own() -> None:
    oven = build(Oven, {"degrees": 99, "wheels": 4})
    assert (oven.degrees, oven.hours) == (99, 1.5)
    with pytest.raises(SettingError):
        build(Oven, {"degrees": 1})


@given(st.integers() | st.floats() | st.text() | st.booleans() | st.none() | st.lists(st.floats()))
def test_whatever_is_given_it_is_taken_in_its_type_or_refused(value: Any) -> None:
    for each in OVEN.values():
        with suppress(SettingError):
            checked = each.checked(value)
            assert each.checked(checked) == checked


# Conditions ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("condition", "fulfilled", "refused", "words"),
    [
        (When({"partition": "by-label"}), {"partition": "by-label"}, {"partition": "iid"},
         "with partition iid; it is for by-label"),
        (When(used=["deadline"]), {"deadline": 1.5}, {"deadline": 0.0}, "without deadline"),
        (When(unused=["bandwidths"]), {"bandwidths": []}, {"bandwidths": [1.0]},
         "because bandwidths replaces it"),
    ],
)  # fmt: skip
def test_a_condition_depends_on_another_setting(
    condition: When, fulfilled: dict[str, object], refused: dict[str, object], words: str
) -> None:
    assert condition.refusal(fulfilled) is None
    assert condition.refusal(refused) == words


def test_a_setting_that_an_old_record_lacks_switches_nothing_off() -> None:
    assert When({"optimizer": "sgd"}).refusal({"momentum": 0.5}) is None
