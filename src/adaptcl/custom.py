"""What a user brings by name: `package.module:name` leads to a function or a class of their own.

What is wrong with how it is defined is said in a sentence, before it is called. What goes wrong
inside it is the user's own to see in full, with a note that says whose code it was.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

from adaptcl.errors import AdaptCLError, SettingError, kind_of
from adaptcl.settings import is_custom, refuse_undeclared


def custom_class(name: str, kind: str, takes: Sequence[str], *protocols: type) -> Any:
    """The class a `package.module:Class` leads to; it must have all that the protocols ask for.

    `kind` is what it is to be, in words, and `takes` is what it is made from.
    """
    found = _imported_class(name, kind)
    needed = [each for like in protocols for each in (*like.__annotations__, *vars(like))]
    lacking = [e for e in dict.fromkeys(needed) if e[0] != "_" and not hasattr(found, e)]
    if lacking:
        raise SettingError(f"{name} cannot be {kind}: it has no {', '.join(lacking)}.")
    if "Settings" in needed:
        refuse_undeclared(name, found.Settings)
    refuse_misdefined(name, found, takes, kind)
    return found


def name_of(given: type, setting: str) -> str:
    """The `package.module:Class` that leads to a class given from Python."""
    name = f"{given.__module__}:{given.__qualname__}"
    module = sys.modules.get(given.__module__)
    if not is_custom(name) or getattr(module, given.__qualname__, None) is not given:
        raise SettingError(
            f"{setting} is {kind_of(given)}, which cannot be found again by its name when the run "
            "is resumed; define it at the top of a module, not inside of a function."
        )
    return name


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


@contextmanager
def telling_whose(names: Iterable[object]) -> Iterator[None]:
    """An error that comes out of a module that one of these names leads to gets a note of it."""
    try:
        yield
    except AdaptCLError:
        raise
    except Exception as error:
        modules = {name.partition(":")[0]: name for name in names if is_custom(name)}
        for name, function in _innermost(error, modules):
            error.add_note(f"This happened in {name}, in {function}, which is not AdaptCL's code.")
        raise


def _innermost(error: Exception, modules: Mapping[str, str]) -> list[tuple[str, str]]:
    """The last of the calls on the way to an error that was in one of the modules."""
    found: list[tuple[str, str]] = []
    trace = error.__traceback__
    while trace is not None:
        code, where = trace.tb_frame.f_code, str(trace.tb_frame.f_globals.get("__name__"))
        if where in modules:
            found = [(modules[where], code.co_qualname)]
        trace = trace.tb_next
    return found


def custom_function(name: str, kind: str, takes: Sequence[str], gives: str) -> Callable[..., Any]:
    """The function a `package.module:name` leads to, or a class that is called like one.

    `kind` is what it is, in words, `takes` what it is called with and `gives` what it must give.
    """
    found = _imported(name, kind)
    if not callable(found):
        raise SettingError(f"{name} is {kind_of(found)}, but {kind} must be a function or a class.")
    refuse_misdefined(name, found, takes, gives)
    return cast(Callable[..., Any], found)


def _imported_class(name: str, kind: str) -> Any:
    found = _imported(name, kind)
    if not isinstance(found, type):
        raise SettingError(f"{name} is {kind_of(found)}, but {kind} must be a class.")
    return found


def _imported(name: str, kind: str) -> Any:
    module_name, _, attribute = name.partition(":")
    # A run folder from elsewhere may name what does harm when called, and nothing there is meant.
    if module_name.partition(".")[0] in sys.stdlib_module_names:
        raise SettingError(
            f"{name} cannot be {kind}: {module_name} is a module of Python's own, not of yours."
        )
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # A module that is there but lacks an import of its own is another matter.
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            error.add_note(f"This happened when {module_name} was imported for {name}.")
            raise
        raise SettingError(
            f"There is no module {module_name}, where {kind} {name!r} should be; is its folder on "
            "PYTHONPATH?"
        ) from error
    except Exception as error:
        error.add_note(f"This happened when {module_name} was imported for {name}.")
        raise
    if not hasattr(module, attribute):
        raise SettingError(f"The module {module_name} has no {attribute}.")
    return getattr(module, attribute)
