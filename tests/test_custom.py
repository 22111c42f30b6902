"""Custom classes and functions, named package.module:name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from adaptcl import data, models
from adaptcl.custom import (
    call_custom,
    check_signature,
    custom_class,
    custom_function,
    hint_at_name,
)
from adaptcl.errors import DataError, SettingError


def two(one: int, other: int) -> int:
    return one - other


def check(factory: Callable[..., Any]) -> None:
    check_signature("mine:build", factory, ("one", "other"), "a number")


def test_any_factory_with_a_fitting_signature_is_accepted() -> None:
    fitting: list[Callable[..., Any]] = [
        two, partial(two), lambda *given: 1, lambda a, b, c=3: 1, complex, range, max,
    ]  # fmt: skip
    for factory in fitting:
        check(factory)
        call_custom("mine:build", factory, 3, 2)


def test_a_factory_with_another_signature_is_refused_with_both_signatures() -> None:
    cases: list[tuple[Callable[..., Any], str]] = [
        (lambda: 1, "build()"),
        (lambda a, b, c: 1, "build(a, b, c)"),
        (lambda a, b, *, c: 1, "build(a, b, *, c)"),
        (lambda *, one, other: 1, "build(*, one, other)"),
    ]
    for factory, defined in cases:
        with pytest.raises(SettingError) as refused:
            check(factory)
        assert str(refused.value) == (
            "mine:build is called as build(one, other) and must return a number, but it is defined "
            f"as {defined}."
        )


def test_an_error_of_adaptcl_raised_inside_a_factory_gets_no_note() -> None:
    def build() -> None:
        raise DataError("There are no samples.")

    with pytest.raises(DataError) as refused:
        call_custom("mine:build", build)
    assert not hasattr(refused.value, "__notes__")


class Empty:
    """Has nothing of what is asked for."""


def test_a_misspelled_module_or_function_gets_a_suggestion() -> None:
    for name, sentence in [
        ("adaptcl.cutsom:call_custom", r"There is 'adaptcl\.custom'\.$"),
        ("adaptcl.custom:call_cutsom", r"did you mean 'adaptcl\.custom:call_custom'\?$"),
        ("adaptcl.custom:zzz", r"has no zzz, which a model 'adaptcl\.custom:zzz' should be\.$"),
    ]:
        with pytest.raises(SettingError, match=sentence):
            custom_function(name, "a model", (), "anything")


def test_what_a_class_lacks_is_named_once() -> None:
    class Like:
        summary: str

    with pytest.raises(SettingError) as refused:
        custom_class(f"{__name__}:Empty", "a strategy", (), Like, Like)
    assert str(refused.value) == f"{__name__}:Empty cannot be a strategy: it has no summary."


def test_a_module_without_a_function_is_answered_with_those_that_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(
        "raise RuntimeError('not to be run')\n"
        "def _hidden(shape, classes): ...\n"
        "def load(data_dir): ...\n"
        "def build(shape, classes, width=8): ...\n"
        "def train(shape, classes, *, epochs): ...\n"
        "class Net:\n    def __init__(self, *given): ...\n"
    )
    for name in ("mine", "mine.py", "./mine.py"):
        sentence = "; did you mean 'mine:build' or 'mine:Net'?"
        assert hint_at_name(name, ("shape", "classes")) == sentence
    assert hint_at_name("mine.build", ("shape", "classes")) == "; did you mean 'mine:build'?"
    none = "; nothing in mine.py can be called with (a, b, c, d)."
    Path("mine.py").write_text("def load(data_dir): ...\n")
    assert hint_at_name("mine", ("a", "b", "c", "d")) == none
    assert hint_at_name("other", ("a",)) == ""


def test_a_model_and_data_named_by_their_file_are_answered_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("def load(data_dir): ...\ndef build(shape, classes): ...\n")
    with pytest.raises(SettingError, match=r"no model 'mine'.* did you mean 'mine:build'\?$"):
        models.find("mine")
    for name in ("mine", "mine.py"):
        with pytest.raises(SettingError, match=r"did you mean 'mine:load'\?$"):
            data.load(name, None)
