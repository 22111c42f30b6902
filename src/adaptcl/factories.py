"""Calling the functions a user names as `package.module:factory`.

What is wrong with how a function is defined is said in a sentence, before it is called. What
goes wrong inside it is the user's own to see in full, with a note that says who called it and how.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from adaptcl.errors import AdaptCLError, SettingError


def refuse_misdefined(
    name: str, factory: Callable[..., Any], takes: Sequence[str], gives: str
) -> None:
    """An error unless the factory can be called with these arguments."""
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):
        return  # some of what is written in C does not say what it takes
    try:
        signature.bind(*takes)
    except TypeError:
        function = name.rpartition(":")[2]
        raise SettingError(
            f"{name} is called as {function}({', '.join(takes)}) and must give back {gives}, but "
            f"it is defined as {function}{signature}."
        ) from None


def call(name: str, factory: Callable[..., Any], *arguments: object) -> Any:
    """What the factory gives back."""
    try:
        return factory(*arguments)
    except AdaptCLError:
        raise
    except Exception as error:
        function = name.rpartition(":")[2]
        given = ", ".join(map(repr, arguments))
        error.add_note(f"This happened in {name}, which was called as {function}({given}).")
        raise
