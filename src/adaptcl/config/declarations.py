"""Every declared setting by name, whichever part declares it."""

from __future__ import annotations

import dataclasses
import difflib
import itertools
from collections.abc import Mapping
from functools import cache
from typing import Any

from adaptcl.codecs import CODECS, CodecClass, codec_class
from adaptcl.config.job import JobSettings
from adaptcl.engines.environment import EnvironmentSettings
from adaptcl.errors import SettingError
from adaptcl.settings import Setting, declared, is_custom
from adaptcl.strategies import STRATEGIES, StrategyClass, strategy_class
from adaptcl.training import Recipe

SHARED_GROUPS: tuple[type, ...] = (JobSettings, Recipe, EnvironmentSettings)
"""The groups of settings that every run has, whatever its strategy and codec."""

_RESERVED = frozenset(STRATEGIES) | {
    *("preset", "out", "file", "help", "help_all", "tls", "listen", "patience", "command", "flags"),
    *("train", "test", "resume", "listeners"),
}
"""Names of sections, of flags that are no settings, and of arguments of `adaptcl.run`."""


def all_settings(values: Mapping[str, Any] | None = None) -> Mapping[str, Setting]:
    """Find every setting by name, those of all strategies and codecs included.

    The settings of custom strategies and codecs are included if the raw `values` name these.
    """
    known = dict(_shipped_settings())
    for name, custom in _custom_classes(values or {}).items():
        for new in declared(custom.Settings):
            _refuse_clash(name, new, known)
            known.setdefault(new.name, new)
    return known


def unknown_setting(name: str, known: Mapping[str, Setting] | None = None) -> SettingError:
    """Make the error for a name that is not a setting; it suggests the nearest one."""
    known = _shipped_settings() if known is None else known
    near = difflib.get_close_matches(name.replace("-", "_"), known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "`adaptcl run --help-all` lists them all."
    return SettingError(f"There is no setting {name!r}; {hint}")


def _custom_classes(values: Mapping[str, Any]) -> dict[str, StrategyClass | CodecClass]:
    strategies = [name.strip() for name in str(values.get("strategy", "")).split(",")]
    custom: dict[str, StrategyClass | CodecClass] = {}
    custom |= {name: strategy_class(name) for name in strategies if is_custom(name)}
    custom |= {name: codec_class(name) for name in [values.get("codec")] if is_custom(name)}
    return custom


@cache
def _shipped_settings() -> Mapping[str, Setting]:
    groups = list(SHARED_GROUPS)
    groups += [each.Settings for each in STRATEGIES.values()]
    groups += [each.Settings for each in CODECS.values()]
    known: dict[str, Setting] = {}
    for each in itertools.chain.from_iterable(map(declared, groups)):
        known.setdefault(each.name, each)
    return known


def _refuse_clash(name: str, new: Setting, known: Mapping[str, Setting]) -> None:
    """Refuse a setting of a custom class that redefines a name; a new default is allowed."""
    before = known.get(new.name, new)
    if new.name in _RESERVED or dataclasses.replace(new, default=before.default) != before:
        raise SettingError(
            f"{name} has a setting {new.name}, but that name has another meaning already; choose "
            "another name."
        )
