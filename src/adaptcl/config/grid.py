"""A grid of settings: where a setting has a list of values, every combination is a run.

Strategies and seeds are settings like any other. A list in the section of a strategy is for that
strategy alone. Runs that would differ in nothing that has an effect are made once: FedAVG prunes
nobody, whatever a list says about pruning.
"""

from __future__ import annotations

import itertools
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, get_args, get_origin

from adaptcl.config.config import Config, all_settings, configure, sections_for, unknown_setting
from adaptcl.config.effects import WHERE_COMPUTED, settings_in_effect, unused_settings
from adaptcl.config.files import is_section, named_strategies, section
from adaptcl.errors import SettingError, listed
from adaptcl.settings import Setting, alternatives

_LONGEST_NAME = 40


@dataclass(frozen=True)
class GridPoint:
    """One run of a grid."""

    values: dict[str, Any]  # the raw values, one for each setting
    varied: dict[str, Any]  # those of the settings that have a list
    config: Config
    idle: frozenset[str] = frozenset()  # those of `varied` that have no effect in this run

    @property
    def name(self) -> str:
        """A name for its folder, by what sets it apart."""
        parts = [_plain(self.varied["strategy"])] if "strategy" in self.varied else []
        others = (name for name in self.varied if name not in {"strategy", *self.idle})
        parts += [f"{name}-{_plain(self.varied[name])}" for name in others]
        return "_".join(parts) or "run"


def expand_grid(values: Mapping[str, Any]) -> list[GridPoint]:
    """Every combination of the listed values, checked; those of one seed come together."""
    strategies = strategy_names(values)
    known = all_settings(values)
    points: dict[str, GridPoint] = {}
    for seed in _listed(known["seed"], values.get("seed", known["seed"].default)):
        for strategy in strategies:
            for combination in _combinations(values, strategy, known):
                point = _point(values, combination, {"strategy": strategy, "seed": seed}, known)
                config = point.config
                effects = settings_in_effect(config.values(), unused=unused_settings(config))
                point = replace(point, idle=frozenset(point.varied) - effects.keys())
                points.setdefault(json.dumps(effects, sort_keys=True, default=str), point)
    return list(points.values())


def strategy_names(values: Mapping[str, Any]) -> list[str]:
    """The strategies that raw values name, or the default; an error if one is named twice."""
    strategy = all_settings()["strategy"]
    named = values.get("strategy", strategy.default)
    each_named = [named] if isinstance(named, str) else named
    is_list = isinstance(each_named, list | tuple) and bool(each_named)
    if not is_list or not all(isinstance(each, str) for each in each_named):
        raise strategy.refuse(named)
    names = named_strategies({"strategy": named})
    if len(set(names)) < len(names):
        raise SettingError(f"strategy is {named!r}, but it must not name a strategy twice.")
    return names


def has_several(setting: Setting, value: Any) -> bool:
    """Whether a value is a list of values for a setting, not a value that is a list itself.

    It is an error if that list is empty: nothing would run.
    """
    depth, inner = 0, value
    while isinstance(inner, list | tuple | range):
        depth, inner = depth + 1, inner[0] if inner else None
    if depth > _depth(setting.kind) and not value:
        raise setting.refuse(value)
    return depth > _depth(setting.kind)


def _depth(kind: Any) -> int:
    """How many lists within lists a value of this kind may be."""
    tuples = [each for each in alternatives(kind) if get_origin(each) is tuple]
    return max((1 + _depth(get_args(each)[0]) for each in tuples), default=0)


def _listed(setting: Setting, value: Any) -> list[Any]:
    return list(dict.fromkeys(value)) if has_several(setting, value) else [value]


def _combinations(
    values: Mapping[str, Any], strategy: str, known: Mapping[str, Setting]
) -> Iterator[dict[tuple[str, str], Any]]:
    """Values by section and name; the section is empty for what stands at the top."""
    same = [each for each in WHERE_COMPUTED if has_several(known[each], values.get(each, ""))]
    if same:
        raise SettingError(
            f"{listed(same)} changes nothing of what a run learns; give it one value."
        )
    lists: dict[tuple[str, str], list[Any]] = {}
    tables = {"": values, **{name: values.get(name, {}) for name in sections_for(strategy)}}
    for head, table in tables.items():
        for name, value in section(head, table).items():
            if not (is_section(name) or name in ("strategy", "seed")):
                if name not in known:
                    raise unknown_setting(name, known)
                if has_several(known[name], value):
                    lists[head, name] = list(value)
    for chosen in itertools.product(*lists.values()):
        yield dict(zip(lists, chosen, strict=True))


def _point(
    values: Mapping[str, Any],
    chosen: Mapping[tuple[str, str], Any],
    ends: Mapping[str, Any],
    known: Mapping[str, Setting],
) -> GridPoint:
    """`ends` are the strategy and the seed."""
    single = {**values, **ends}
    for head in {head for head, _ in chosen if head}:
        single[head] = {**values[head]}
    for (head, name), value in chosen.items():
        (single[head] if head else single)[name] = value
    # Lists of other strategies' sections are not for this run.
    used = {*sections_for(ends["strategy"])}
    single = {name: v for name, v in single.items() if not is_section(name) or name in used}
    several = {name: v for name, v in ends.items() if has_several(known[name], values.get(name))}
    if len(strategy_names(values)) > 1:
        several["strategy"] = ends["strategy"]
    varied = {**{name: value for (_, name), value in chosen.items()}, **several}
    return GridPoint(single, varied, configure(single, known))


def _plain(value: Any) -> str:
    """A value as a part of a file's name."""
    text = re.sub(r"[^A-Za-z0-9.+-]+", "-", str(value)).strip("-")
    if len(text) <= _LONGEST_NAME:
        return text
    return f"{text[: _LONGEST_NAME - 9]}-{zlib.crc32(text.encode()):08x}"
