"""Custom classes and functions: what a user names as `package.module:name`.

An error in how such code is defined is reported in one sentence, before it is called. An error
raised inside it is shown in full, with a note that says whose code it is.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from adaptcl.errors import AdaptCLError, SettingError, describe_type
from adaptcl.settings import check_declared, is_custom


def custom_class(name: str, role: str, takes: Sequence[str], *protocols: type) -> Any:
    """Import a class and check that it has every member of the protocols.

    `role` says what it is used as (`a codec`), `takes` names the arguments of its constructor.
    """
    found = _import(name, role)
    if not isinstance(found, type):
        raise SettingError(f"{name} is {describe_type(found)}, but {role} must be a class.")
    needed = [each for like in protocols for each in (*like.__annotations__, *vars(like))]
    missing = [e for e in dict.fromkeys(needed) if e[0] != "_" and not hasattr(found, e)]
    if missing:
        raise SettingError(f"{name} cannot be {role}: it has no {', '.join(missing)}.")
    if "Settings" in needed:
        check_declared(name, getattr(found, "Settings", None))
    check_signature(name, found, takes, role)
    return found


def custom_function(name: str, role: str, takes: Sequence[str], returns: str) -> Callable[..., Any]:
    """Import a function, or a class that is called like one, and check its signature."""
    found = _import(name, role)
    if not callable(found):
        raise SettingError(
            f"{name} is {describe_type(found)}, but {role} must be a function or a class."
        )
    check_signature(name, found, takes, returns)
    return cast(Callable[..., Any], found)


def import_name(custom: type, setting: str) -> str:
    """Find the `package.module:Class` that imports a class again."""
    name = f"{custom.__module__}:{custom.__qualname__}"
    module = sys.modules.get(custom.__module__)
    if not is_custom(name) or getattr(module, custom.__qualname__, None) is not custom:
        raise SettingError(
            f"{setting} is {describe_type(custom)}, which cannot be imported by name when the run "
            "is resumed; define it at the top level of a module, not inside a function."
        )
    return name


def check_signature(
    name: str, factory: Callable[..., Any], takes: Sequence[str], returns: str
) -> None:
    """Raise an error unless the factory can be called with these arguments."""
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):
        return  # some functions written in C have no signature
    try:
        signature.bind(*takes)
    except TypeError:
        function = name.rpartition(":")[2]
        raise SettingError(
            f"{name} is called as {function}({', '.join(takes)}) and must return {returns}, but it "
            f"is defined as {function}{signature}."
        ) from None


def call_custom(name: str, factory: Callable[..., Any], *arguments: object) -> Any:
    """Call a factory; an error it raises gets a note with its name and arguments."""
    try:
        return factory(*arguments)
    except AdaptCLError:
        raise
    except Exception as error:
        function = name.rpartition(":")[2]
        shown = ", ".join(map(repr, arguments))
        error.add_note(f"This happened in {name}, which was called as {function}({shown}).")
        raise


@contextmanager
def note_custom_code(names: Iterable[object]) -> Iterator[None]:
    """Add a note to an error that comes from the module of one of these names."""
    try:
        yield
    except AdaptCLError:
        raise
    except Exception as error:
        modules = {name.partition(":")[0]: name for name in names if is_custom(name)}
        if note := _innermost_call(error, modules):
            error.add_note(f"This happened in {note}")
        raise


def _innermost_call(error: Exception, modules: Mapping[str, str]) -> str:
    """Say which last call in the traceback was in one of the modules; if none was, which method
    that a class of theirs inherits from us. Empty if there is neither."""
    own, inherited = "", ""
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        function, where = frame.f_code.co_qualname, str(frame.f_globals.get("__name__"))
        owner = type(frame.f_locals.get("self")).__module__
        if where in modules:
            own = f"{modules[where]}, in {function}, which is not AdaptCL's code."
        elif owner in modules and where.startswith("adaptcl."):
            inherited = (
                f"{function}, which {modules[owner]} inherits; look whether your class sets an "
                "attribute that its base has too."
            )
        trace = trace.tb_next
    return own or inherited


def _import(name: str, role: str) -> Any:
    module_name, _, attribute = name.partition(":")
    # A run folder from elsewhere may name a function that does harm when it is called.
    if module_name.partition(".")[0] in sys.stdlib_module_names:
        raise SettingError(
            f"{name} cannot be {role}: {module_name} is a module of Python's standard library."
        )
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # A module that exists but fails to import another one is a different error.
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            error.add_note(f"This happened when {module_name} was imported for {name}.")
            raise
        if hint := hint_at_name(name):
            raise SettingError(f"{name!r} is no name of {role}{hint}") from error
        raise SettingError(
            f"There is no module {module_name}, where {role} {name!r} should be; is it in the "
            f"folder where you are, or on PYTHONPATH?{_near_module(module_name)}"
        ) from error
    except Exception as error:
        error.add_note(f"This happened when {module_name} was imported for {name}.")
        raise
    if not hasattr(module, attribute):
        near = difflib.get_close_matches(attribute, vars(module), n=1)
        hint = f"; did you mean '{module_name}:{near[0]}'?" if near else "."
        raise SettingError(
            f"The module {module_name} has no {attribute}, which {role} {name!r} should be{hint}"
        )
    return getattr(module, attribute)


def hint_at_name(name: str, takes: Sequence[str] = ()) -> str:
    """The end of a sentence about `mine.py:build`, `mine.build` or `mine`, if there is such a file.

    Of a file alone it names what can be called with the arguments that `takes` names.
    """
    if takes and (file := _module_file(name.removesuffix(".py"))):
        module = _module_name(file)
        fitting = [repr(f"{module}:{each}") for each in _callables(file, len(takes))]
        if fitting:
            return f"; did you mean {' or '.join(fitting)}?"
        return f"; nothing in {file} can be called with ({', '.join(takes)})."
    found = re.fullmatch(r"([\w./]+?)(\.py)?[.:](\w+)", name)
    file = _module_file(found[1]) if found else None
    return f"; did you mean '{_module_name(file)}:{found[3]}'?" if found and file else ""


def _module_file(name: str) -> Path | None:
    """The file below this folder of a module named `package.module` or `package/module`."""
    file = Path(name.removeprefix("./").replace(".", "/") + ".py")
    return file if name and file.is_file() else None


def _module_name(file: Path) -> str:
    return ".".join(file.with_suffix("").parts)


def _callables(file: Path, count: int) -> list[str]:
    """The functions and classes of a file that take so many arguments; nothing in it is run."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return []
    return [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
        and _takes(node, count)
    ]


def _takes(node: ast.FunctionDef | ast.ClassDef, count: int) -> bool:
    if isinstance(node, ast.ClassDef):
        methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
        made_by = next((each for each in methods if each.name == "__init__"), None)
        return made_by is not None and _takes(made_by, count + 1)  # and self
    given = node.args
    most = len(given.posonlyargs) + len(given.args)
    needs_names = None in given.kw_defaults
    return most - len(given.defaults) <= count <= (count if given.vararg else most) and (
        not needs_names
    )


def _near_module(name: str) -> str:
    """A suggestion of a module beside the one that is missing; empty if none is similar."""
    package, _, last = name.rpartition(".")
    try:
        folders = importlib.import_module(package).__path__ if package else sys.path[:1]
    except Exception:  # the package is missing too, or is none
        return ""
    names = [each.name for each in pkgutil.iter_modules(folders)]
    near = difflib.get_close_matches(last, names, n=1)
    return f" There is {f'{package}.{near[0]}'.lstrip('.')!r}." if near else ""
