"""Models and data that have no name, because they were given from Python, told apart.

Such runs all say the same in `config.toml`. What they were begun with is on record beside it, for
when they go on, and tells a reader of several runs which of them had the same model and data.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

from adaptcl.config.given import FROM_PYTHON

_LONGEST_NAME = 16


def identified(config: Mapping[str, Any], marks: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The settings with a name for a model and for data that had none; the same one for equal ones.

    Whatever a seed decides has no part in it: neither the values a model begins with nor how data
    is dealt, unless it was given as dealt already.
    """
    if marks is None:
        return config
    try:
        named = {"model": _model(marks["model"]), "data": _data(marks)}
    except (KeyError, TypeError, ValueError, AttributeError):
        return config  # damaged, which is for whoever goes on with the run to complain of
    return {
        name: named[name] if name in named and value == FROM_PYTHON else value
        for name, value in config.items()
    }


def _model(model: Mapping[str, Any]) -> str:
    made_of = {name: model[name] for name in ("tensors", "code")}
    return f"{model.get('name', 'module')[:_LONGEST_NAME]} {_short(made_of)}"


def _data(marks: Mapping[str, Any]) -> str:
    samples = sum(marks["samples"])
    return f"{samples} samples {_short([marks['origin'], marks['test']])}"


def _short(made_of: Any) -> str:
    return f"{zlib.crc32(json.dumps(made_of).encode()):08x}"[:6]
