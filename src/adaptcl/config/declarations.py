"""Every setting there is, of whatever part: what a name may be, and what it may not."""

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

_TAKEN = frozenset(STRATEGIES) | {
    *("preset", "out", "file", "help", "tls", "listen", "patience", "command", "known"),
    *("train", "test", "resume", "listeners"),
}
"""Names that mean something else: sections of a file, flags of commands, arguments from Python."""


def all_settings(values: Mapping[str, Any] | None = None) -> Mapping[str, Setting]:
    """Every setting there is, by name, those of all strategies and codecs included.

    Those of the user's own strategies and codecs are there if the raw `values` name them.
    """
    known = dict(_settings_of_ours())
    for name, own in _own_classes(values or {}).items():
        for new in declared(own.Settings):
            _refuse_taken(name, new, known)
            known.setdefault(new.name, new)
    return known


def _own_classes(values: Mapping[str, Any]) -> dict[str, StrategyClass | CodecClass]:
    """By name; several strategies have commas between."""
    strategies = [name.strip() for name in str(values.get("strategy", "")).split(",")]
    own: dict[str, StrategyClass | CodecClass] = {}
    own |= {name: strategy_class(name) for name in strategies if is_custom(name)}
    own |= {name: codec_class(name) for name in [values.get("codec")] if is_custom(name)}
    return own


@cache
def _settings_of_ours() -> Mapping[str, Setting]:
    groups: list[type] = [JobSettings, Recipe, EnvironmentSettings]
    groups += [s.Settings for s in STRATEGIES.values()]
    groups += [c.Settings for c in CODECS.values()]
    known: dict[str, Setting] = {}
    for each in itertools.chain.from_iterable(map(declared, groups)):
        known.setdefault(each.name, each)
    return known


def _refuse_taken(name: str, new: Setting, known: Mapping[str, Setting]) -> None:
    """An error if a class of that name gives a new meaning to a name; a new default is none."""
    before = known.get(new.name, new)
    if new.name in _TAKEN or dataclasses.replace(new, default=before.default) != before:
        raise SettingError(
            f"{name} has a setting {new.name}, but that name has another meaning already; choose "
            "another name."
        )


def unknown_setting(name: str, known: Mapping[str, Setting] | None = None) -> SettingError:
    """The sentence for a name that is none of the `known`, with the nearest one there is."""
    known = _settings_of_ours() if known is None else known
    near = difflib.get_close_matches(name.replace("-", "_"), known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "`adaptcl run --help` lists them all."
    return SettingError(f"There is no setting {name!r}; {hint}")
