"""The complete settings of one run, checked, and how raw values become them."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tomli_w

from adaptcl import data
from adaptcl.codecs import codec_class
from adaptcl.config.job import JobSettings
from adaptcl.config.known import all_settings, unknown_setting
from adaptcl.custom import name_of
from adaptcl.engines.environment import EnvironmentSettings
from adaptcl.errors import SettingError
from adaptcl.settings import Setting, build, declared, is_custom
from adaptcl.strategies import STRATEGIES, strategy_class
from adaptcl.training import Recipe


@dataclass(frozen=True)
class Config:
    """All settings of one run, checked."""

    job: JobSettings
    recipe: Recipe
    environment: EnvironmentSettings
    strategy: Any
    """The settings of the chosen strategy."""
    codec: Any
    """The settings of the chosen codec."""

    def values(self) -> dict[str, Any]:
        """Every setting that has a part in this run, by name."""
        groups = (self.job, self.recipe, self.environment, self.strategy, self.codec)
        return {k: v for group in groups for k, v in dataclasses.asdict(group).items()}

    @property
    def pruning(self) -> str:
        """The pruning order, if the strategy prunes by one; else empty."""
        return str(getattr(self.strategy, "pruning", ""))

    @property
    def named_methods(self) -> tuple[str, ...]:
        """What has a part in the run that may be code of the user's own."""
        return (self.job.strategy, self.job.codec, self.pruning)

    def anchored(self) -> Config:
        """The same with absolute paths, so that it means the same wherever a run is resumed."""
        job, environment = self.job, self.environment
        return dataclasses.replace(
            self,
            job=dataclasses.replace(
                job, data=data.anchored(job.data), data_dir=_absolute(job.data_dir)
            ),
            environment=dataclasses.replace(environment, trace=_absolute(environment.trace)),
        )

    def to_toml(self) -> str:
        """A complete file that makes the same run again."""
        return tomli_w.dumps({k: v for k, v in self.values().items() if v is not None})


def configure(values: Mapping[str, Any], known: Mapping[str, Setting] | None = None) -> Config:
    """Check raw values, name by name, and make a configuration of them.

    A section named like a strategy holds values that are meant for this strategy alone, and for
    the user's own that are made of it. `known` are the settings there may be; other ones where
    several strategies are configured together.
    """
    known = all_settings(values) if known is None else known
    sections = {name: _section(name, values[name]) for name in values if _heads_section(name)}
    top = {name: value for name, value in values.items() if name not in sections}
    for name, value in itertools.chain(top.items(), *(each.items() for each in sections.values())):
        if name not in known:
            raise unknown_setting(name, known)
        known[name].checked(value)
    for name in sections_for(build(JobSettings, top).strategy):
        top |= sections.get(name, {})
    values = top
    job = build(JobSettings, values)
    return Config(
        job=job,
        recipe=build(Recipe, values),
        environment=build(EnvironmentSettings, values),
        strategy=build(strategy_class(job.strategy).Settings, values),
        codec=build(codec_class(job.codec).Settings, values),
    )


def sections_for(strategy: str) -> list[str]:
    """The names of the sections that a strategy reads; the later win."""
    if not is_custom(strategy):
        return [strategy]
    made_of = getattr(strategy_class(strategy), "__mro__", ())
    return [*(name for name, ours in STRATEGIES.items() if ours in made_of), strategy]


def over(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """Raw values on top of others: what is said above wins, also against a section below."""
    merged = {**lower, **upper}
    for name in lower:
        if _heads_section(name):
            below = {k: v for k, v in lower[name].items() if k not in upper}
            merged[name] = {**below, **_section(name, upper.get(name, {}))}
    return merged


def _heads_section(name: str) -> bool:
    return name in STRATEGIES or is_custom(name)


def _section(name: str, values: Any) -> Mapping[str, Any]:
    if not isinstance(values, Mapping):
        raise SettingError(
            f"{name} is {values!r}, but a strategy's name must head a table of settings, [{name}]."
        )
    for each in (*declared(JobSettings), *declared(EnvironmentSettings)):
        if each.name in values:
            raise SettingError(
                f"[{name}] sets {each.name}, which is the same for all strategies of a job."
            )
    return values


def _absolute(path: str) -> str:
    return os.path.abspath(path) if path else ""


# Settings as `adaptcl.run` takes them: beside a model and data, and as values rather than words.
#
# What the command line reads out of settings, the name of a data set or several seeds, has no
# place here, and to ignore it would make another run than the one that was asked for.

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
        return "," in value and not is_custom(value)
    return isinstance(value, list | tuple | set | range)
