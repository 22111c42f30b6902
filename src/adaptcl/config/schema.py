"""A JSON Schema of the settings file, so that editors complete and check `my.toml`.

`adaptcl schema > adaptcl.schema.json` writes it. An editor finds it by a first line
`#:schema ./adaptcl.schema.json` in the file.
"""

from __future__ import annotations

from typing import Any, get_args, get_origin

from adaptcl.config.catalogue import read_catalogue
from adaptcl.settings import Setting, alternatives

_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}


def settings_schema() -> dict[str, Any]:
    """The schema, with every setting that a file may have."""
    properties = {name: _schema(each) for name, each in read_catalogue().settings.items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Settings of an AdaptCL run",
        "type": "object",
        "properties": properties,
    }


def _schema(setting: Setting) -> dict[str, Any]:
    found: dict[str, Any] = {"description": setting.help, **_of_kind(setting.kind, setting)}
    default = setting.default
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
