"""All settings, strategies, pruning orders, codecs, models and data sets, without PyTorch.

They are declared in modules that import PyTorch, which takes seconds. So names, help texts and
summaries are also kept in `catalogue.json`, and `adaptcl --help`, the lists and the message for a
misspelled flag are made from that file alone. `tools/make_catalogue.py` writes it. A run uses the
declarations themselves.

The JSON Schema that lets editors complete and check a settings file is made from it too:
`adaptcl schema > adaptcl.schema.json` writes it, and a first line `#:schema ./adaptcl.schema.json`
in the file lets the editor find it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, reduce
from operator import or_
from pathlib import Path
from typing import Any, get_args, get_origin

from adaptcl.settings import KINDS, Allowed, Seconds, Setting, alternatives

FILE = Path(__file__).with_name("catalogue.json")

ENVIRONMENT = "environment"  # the group of the settings that describe simulated machines

_TYPES: Mapping[Any, str | list[str]] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    Seconds: ["number", "string"],
    str: "string",
}

Summaries = Mapping[str, str]  # one line about each thing that has a name


@dataclass(frozen=True)
class Catalogue:
    """The content of the file."""

    settings: Mapping[str, Setting]  # by name, without their conditions
    strategy_defaults: Mapping[str, Mapping[str, Any]]
    """By strategy, the defaults that differ from those of `settings`."""
    part_settings: Mapping[str, Mapping[str, list[str]]]
    """By kind of part and name, its settings, as far as they have an effect on it."""
    strategies: Summaries
    prunings: Summaries
    codecs: Summaries
    models: Summaries
    data: Summaries


@cache
def read_catalogue() -> Catalogue:
    content = json.loads(FILE.read_text(encoding="utf-8"))
    settings = {name: _setting(name, each) for name, each in content.pop("settings").items()}
    return Catalogue(settings, **content)


def kind_name(kind: Any) -> str:
    return " | ".join(
        str(each) if get_origin(each) else str(each.__name__) for each in alternatives(kind)
    )


def order_summary(order: Any) -> str:
    """Describe a pruning order in one line, with who computes it."""
    who = "each worker" if order.computed == "by-workers" else "the server"
    return f"{order.summary} (computed by {who})"


def _setting(name: str, entry: Mapping[str, Any]) -> Setting:
    allowed = dict(entry["allowed"])
    if "choices" in allowed:
        allowed["choices"] = tuple(allowed["choices"])
    kinds = {kind_name(each): each for each in (*KINDS, type(None))}
    kind = reduce(or_, [kinds[each] for each in entry["kind"].split(" | ")])
    found = Setting(name, kind, None, entry["help"], Allowed(**allowed), group=entry["group"])
    return replace(found, default=found.checked(entry["default"]))  # lists become tuples


def settings_schema(preset_values: Mapping[str, Any]) -> dict[str, Any]:
    """The schema; `preset_values` are those of the preset that lies under every settings file."""
    properties = {
        name: _schema(each, preset_values.get(name, each.default))
        for name, each in read_catalogue().settings.items()
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Settings of an AdaptCL run",
        "type": "object",
        "properties": properties,
    }


def _schema(setting: Setting, default: Any) -> dict[str, Any]:
    one = _of_kind(setting.kind, setting)
    several = {"type": "array", "items": one, "minItems": 1}  # a run for each
    found: dict[str, Any] = {"description": setting.help, "anyOf": [one, several]}
    if default is not None:
        found["default"] = list(default) if isinstance(default, tuple) else default
    return found


def _of_kind(kind: Any, setting: Setting) -> dict[str, Any]:
    # What may be None is left out of a file instead.
    kinds = [each for each in alternatives(kind) if each is not type(None)]
    if len(kinds) > 1:
        return {"anyOf": [_of_kind(each, setting) for each in kinds]}
    (kind,) = kinds
    if get_origin(kind) is tuple:
        return {"type": "array", "items": _of_kind(get_args(kind)[0], setting)}
    allowed = setting.allowed
    found: dict[str, Any] = {"type": _TYPES[kind]}
    limits = {
        "minimum": allowed.at_least,
        "maximum": allowed.at_most,
        "exclusiveMinimum": allowed.above,
        "exclusiveMaximum": allowed.below,
    }
    if kind is not str:
        found |= {name: limit for name, limit in limits.items() if limit is not None}
    elif allowed.choices:
        names = {"enum": list(allowed.choices)}
        # A name of the user's own, or several with commas between, is as good.
        custom = {"type": "string", "pattern": "[:,]"}
        return {"anyOf": [names, custom]} if allowed.or_custom else {**found, **names}
    return found
