"""Settings as `adaptcl.run` takes them: beside a model and data, and as values rather than words.

What the command line reads out of settings, the name of a data set or several seeds, has no place
here, and to ignore it would make another run than the one that was asked for.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from adaptcl.errors import SettingError
from adaptcl.own_code import name_of
from adaptcl.settings import is_own

FROM_PYTHON = "(given from Python)"
"""Stands in the settings for a model or data that has no name."""
_OF_DATA = ("data", "data_dir")
_OF_DEALING = ("partition", "label_share", "concentration")


def as_named(settings: Mapping[str, Any], *, dealt: bool) -> dict[str, Any]:
    """The settings with names for classes; an error for what contradicts the rest of the call.

    `dealt` is whether training data is given as a part for each worker.
    """
    for name in _OF_DATA:
        if name in settings:
            raise SettingError(
                f"{name} is {settings[name]!r}, but the data is given as train and test; leave "
                f"{name} out."
            )
    for name in _OF_DEALING:
        if dealt and name in settings:
            raise SettingError(
                f"{name} is {settings[name]!r}, but train is a list with a data set for each "
                f"worker, which is not dealt again; leave {name} out."
            )
    for name in ("seed", "strategy"):
        if name in settings and _are_several(settings[name]):
            raise SettingError(
                f"{name} is {settings[name]!r}, but adaptcl.run makes one run; call it once for "
                f"each {name}, with a folder `out` of its own."
            )
    return {k: name_of(v, k) if inspect.isclass(v) else v for k, v in settings.items()}


def _are_several(value: Any) -> bool:
    if isinstance(value, str):
        return "," in value and not is_own(value)
    return isinstance(value, list | tuple | set | range)
