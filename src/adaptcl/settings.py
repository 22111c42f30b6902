"""Settings that check themselves, and the conditions under which they have an effect.

A group of settings is a frozen dataclass whose fields are made by `setting(...)`: a default, a help
text, the allowed values and, where other settings can switch it off, a condition. Each group stands
in the file of the part it sets: the recipe beside the training, the numbers of a strategy in that
strategy's file. The command line and the TOML reader are made from these declarations, so a name,
its help and its range exist once.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import (
    Any,
    NewType,
    TypeGuard,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from adaptcl.errors import SettingError, hint_at_value

Group = TypeVar("Group")

_CUSTOM_NAME = re.compile(r"\w+(\.\w+)*:\w+")


def as_typed(value: Any) -> str:
    """A value as it is typed on the command line; `none` if it is left out or empty."""
    if value in (None, "", [], ()):
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        between = ";" if any(isinstance(each, list | tuple) for each in value) else ","
        return between.join(map(as_typed, value))
    return str(value)


def is_custom(name: object) -> TypeGuard[str]:
    """Say whether a name leads to custom code, as `package.module:Class` does."""
    return isinstance(name, str) and _CUSTOM_NAME.fullmatch(name) is not None


Seconds = NewType("Seconds", float)
"""A time. A setting of this type also takes words such as 90min or 1h30min."""

_SECONDS = {"s": 1, "m": 60, "h": 3600}


def parse_seconds(text: str) -> float:
    """Parse seconds, or a time in words such as 90min or 1h30min; else a `ValueError`."""
    found = re.findall(r"([0-9.]+)\s*(seconds?|sec|s|minutes?|min|hours?|h)\s*", text)
    if not found or "".join(map("".join, found)) != re.sub(r"\s", "", text):
        return float(text)
    return sum(float(number) * _SECONDS[unit[0]] for number, unit in found)


@dataclass(frozen=True)
class When:
    """What the other settings of a run must fulfil for a setting to have an effect."""

    equal: Mapping[str, str] = field(default_factory=dict)  # these have the values given here
    used: Sequence[str] = ()  # these are in use: neither 0 nor empty
    unused: Sequence[str] = ()  # these are not: each of them replaces the setting

    def refusal(self, settings: Mapping[str, Any]) -> str | None:
        """End a sentence that begins with 'This setting has no effect'; None if it has one."""
        for name, value in self.equal.items():
            # The records of older runs lack settings that are newer; these count as fulfilled.
            if settings.get(name, value) != value:
                return f"with {name} {settings.get(name)}; it is for {value}"
        for name in self.used:
            if not settings.get(name):
                return f"without {name}"
        for name in self.unused:
            if settings.get(name):
                return f"because {name} replaces it"
        return None


@dataclass(frozen=True)
class Allowed:
    """The values a setting may take, beyond its type."""

    at_least: float | None = None
    at_most: float | None = None
    above: float | None = None
    below: float | None = None
    choices: tuple[str, ...] | None = None
    or_custom: bool = False  # whether `package.module:Class` is allowed beside the choices

    def fits(self, value: Any) -> bool:
        """Say whether a value of the right type is in range; of a tuple, every entry."""
        if isinstance(value, tuple):
            return all(self.fits(each) for each in value)
        if self.choices is not None and isinstance(value, str):
            return value in self.choices or (self.or_custom and is_custom(value))
        if isinstance(value, bool) or not isinstance(value, int | float):
            return True
        return (
            (self.at_least is None or value >= self.at_least)
            and (self.at_most is None or value <= self.at_most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
            and (isinstance(value, int) or math.isfinite(value))
        )

    def in_words(self) -> str:
        """Describe the range for an error message or a help text."""
        words = [
            f"{word} {limit if isinstance(limit, int) else format(limit, 'g')}"
            for word, limit in (
                ("at least", self.at_least),
                ("above", self.above),
                ("at most", self.at_most),
                ("below", self.below),
            )
            if limit is not None
        ]
        if self.choices is None:
            return " and ".join(words)
        if words:  # numbers, or one of these names
            return " and ".join(words) + ", or " + ", ".join(self.choices)
        custom = ", or your own as package.module:Class" if self.or_custom else ""
        return "one of " + ", ".join(filter(None, self.choices)) + custom


def setting(
    default: Any,
    help: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    above: float | None = None,
    below: float | None = None,
    choices: Iterable[str] | None = None,
    or_custom: bool = False,
    condition: When | None = None,
    group: str = "",
) -> Any:
    """Declare one setting as a dataclass field.

    `group` is the heading of the help under which it stands; the catalogue chooses one if it is
    empty.
    """
    allowed = Allowed(
        at_least, at_most, above, below, tuple(choices) if choices else None, or_custom
    )
    metadata = {"help": help, "allowed": allowed, "condition": condition, "group": group}
    return field(default=default, metadata=metadata)


def refuse_other_count(found: str, count: int, workers: int) -> None:
    """An error that begins with what was `found`, unless there is one for each worker."""
    if count != workers:
        raise SettingError(f"{found}, but it must have one for each of the {workers} workers.")


def redeclared(group: type, name: str, default: Any) -> Any:
    """Declare a setting of another group again with a different default."""
    (before,) = (each for each in dataclasses.fields(group) if each.name == name)
    return field(default=default, metadata=before.metadata)


@dataclass(frozen=True)
class Setting:
    """A declared setting, as the command line and the TOML reader use it."""

    name: str
    kind: Any
    default: Any
    help: str
    allowed: Allowed
    condition: When | None = None  # the setting has an effect only where it holds
    group: str = field(default="", compare=False)  # the heading of the help under which it stands

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def words(self) -> str:
        """The type and the range: 'a number, at least 0 and below 1'."""
        named = self.allowed.choices is not None
        kinds = [each for each in alternatives(self.kind) if not (named and each is str)]
        kind = " or ".join(KINDS[each] for each in kinds)
        range_words = self.allowed.in_words()
        if self.kind is Seconds:
            return f"{kind}, {range_words}, or a time such as 300s, 90min or 2h"
        if not kind:
            return range_words
        if self.allowed.choices is not None and self.kind == tuple[str, ...]:
            return f"a list, each entry {range_words}"
        return f"{kind}, {range_words}" if range_words else kind

    def refuse(self, value: Any) -> SettingError:
        """Make the error for a value that is not allowed."""
        known, wrong = self.allowed.choices, value
        if known and isinstance(value, list | tuple):
            wrong = next((each for each in value if each not in known), value)
        hint = hint_at_value(wrong, known) if known else "."
        shown = list(value) if isinstance(value, tuple) else value  # as in a file
        return SettingError(f"{self.name} is {shown!r}, but it must be {self.words}{hint}")

    def checked(self, value: Any) -> Any:
        """Convert a value to the type of the setting, or raise a `SettingError`."""
        for kind in alternatives(self.kind):
            converted = _convert(value, kind)
            if converted is not _NO:
                if self.allowed.fits(converted):
                    return converted
                break
        raise self.refuse(value)

    def parse(self, text: str) -> Any:
        """Convert a word of the command line, or raise a `SettingError`."""
        for kind in alternatives(self.kind):
            value = _parse(text, kind)
            if value is not _NO:
                return self.checked(value)
        raise self.refuse(text)


_types: Callable[[type], Mapping[str, Any]] = cache(get_type_hints)
"""The types of a class's fields; resolving them takes most of the time of configuring a run."""


def declared(group: type) -> tuple[Setting, ...]:
    """List the settings of a group, in order."""
    hints = _types(group)
    return tuple(
        Setting(f.name, hints[f.name], f.default, **f.metadata)
        for f in dataclasses.fields(group)
        if "allowed" in f.metadata
    )


def check_declared(name: str, group: Any) -> None:
    """Raise an error unless the settings of the class `name` are declared by `setting(...)`."""
    if not (isinstance(group, type) and dataclasses.is_dataclass(group)):
        raise SettingError(f"The Settings of {name} must be a dataclass.")
    for each_field in dataclasses.fields(group):
        if "allowed" not in each_field.metadata:
            raise SettingError(
                f"The Settings of {name} have {each_field.name}, which must be declared as "
                f"{each_field.name}: TYPE = setting(DEFAULT, HELP)."
            )
    for each in declared(group):
        if not all(kind in KINDS for kind in alternatives(each.kind)):
            raise SettingError(
                f"The Settings of {name} have {each.name}, whose type no setting can have; it "
                f"must be {', '.join(KINDS[kind] for kind in (int, float, bool, str))} or "
                "a list of one of them."
            )
        each.checked(each.default)


def build(group: type[Group], values: Mapping[str, Any]) -> Group:
    """Make a group from raw values and check each; ignore names that it does not declare."""
    known = {s.name: s for s in declared(group)}
    return group(**{k: known[k].checked(v) for k, v in values.items() if k in known})


_NO = object()
KINDS: Mapping[Any, str] = {
    int: "a whole number",
    float: "a number",
    Seconds: "a number of seconds",
    bool: "true or false",
    str: "text",
    type(None): "none",
    tuple[float, ...]: "a list of numbers",
    tuple[int, ...]: "a list of whole numbers",
    tuple[str, ...]: "a list of texts",
    tuple[tuple[float, ...], ...]: "a list of lists of numbers",
}
"""The types that a setting can have, in words."""


def alternatives(kind: Any) -> tuple[Any, ...]:
    """The types that a value may have, in the order in which they are tried."""
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _convert(value: Any, kind: Any) -> Any:
    if kind is type(None):
        return None if value is None else _NO
    if get_origin(kind) is tuple:
        if isinstance(value, str):  # as on the command line
            return _parse(value, kind)
        if not isinstance(value, list | tuple):
            return _NO
        converted = tuple(_convert(each, get_args(kind)[0]) for each in value)
        return _NO if _NO in converted else converted
    if kind is Seconds:
        return _parse(value, kind) if isinstance(value, str) else _number(value, float)
    if kind in (int, float):
        return _number(value, kind)
    return value if type(value) is kind else _NO


def _number(value: Any, kind: type[int] | type[float]) -> Any:
    """Accept any number of that type, NumPy's too, but no bool, which Python calls a number."""
    if isinstance(value, bool):
        return _NO
    try:
        if kind is int:
            return int(value) if isinstance(value, numbers.Integral) else _NO
        return float(value) if isinstance(value, numbers.Real) else _NO
    except OverflowError:
        return _NO


def _parse(text: str, kind: Any) -> Any:
    if kind is bool:
        return {"true": True, "false": False}.get(text.lower(), _NO)
    if kind in (int, float, Seconds):
        try:
            return parse_seconds(text) if kind is Seconds else kind(text)
        except ValueError:
            return _NO
    if kind is str:
        return text
    if kind is type(None):
        return None if text.lower() == "none" else _NO
    inner = get_args(kind)[0]
    between = ";" if get_origin(inner) is tuple else ","
    if text.startswith("[") and text.endswith("]"):  # as in a TOML file
        text = re.sub(r"\]\s*,\s*\[", ";", text).replace("[", "").replace("]", "")
    words = [part.strip() for part in text.strip().removesuffix(between).split(between)]
    parts = [_parse(each, inner) if each else _NO for each in words if text.strip()]
    return _NO if _NO in parts else tuple(parts)
