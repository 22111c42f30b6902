"""The settings of a run: every declared one by name, and the complete, checked ones of one run."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import tomli_w

from adaptcl import data
from adaptcl.codecs import CODECS, CodecClass, Codecs, codec_class, codecs
from adaptcl.config.files import is_section, named_strategies, section
from adaptcl.config.job import JobSettings
from adaptcl.custom import import_name
from adaptcl.engines.environment import EnvironmentSettings
from adaptcl.engines.stop_rule import StopCondition, StopRule, early_stopping, target, time_limit
from adaptcl.errors import SettingError, nearest_setting
from adaptcl.settings import Setting, build, declared, is_custom
from adaptcl.strategies import STRATEGIES, StrategyClass, strategy_class
from adaptcl.training import Recipe
from adaptcl.training.objectives.evaluation import USUAL_COUNT
from adaptcl.training.objectives.metrics import Measure

SHARED_GROUPS: tuple[type, ...] = (JobSettings, Recipe, EnvironmentSettings)
"""The groups of settings that every run has, whatever its strategy and codec."""

_FLAGS_ALONE = ("out", "figures", "track", "watch", "listener")
"""Flags of `adaptcl run` that are no settings: they change nothing of the run itself."""
_RESERVED = frozenset(STRATEGIES) | {
    *(
        "preset",
        "file",
        "help",
        "help_all",
        "listen",
        "tls",
        "patience",
        "least_workers",
        "command",
        "flags",
        "titles",
    ),
    *("train", "test", "resume", "listeners", "loss", "metrics", "collate", *_FLAGS_ALONE),
}
"""Names of sections, of flags that are no settings, and of arguments of `adaptcl.run`."""
FROM_PYTHON = "(given from Python)"
"""Stands in the settings for a model or data that `adaptcl.run` was called with."""


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
    if name in _FLAGS_ALONE:
        return SettingError(
            f"{name!r} is no setting of a run; give it to the command, as --{name}."
        )
    known = _shipped_settings() if known is None else known
    near = nearest_setting(name, known)
    hint = f"did you mean {near!r}? " if near else ""
    return SettingError(
        f"There is no setting {name!r}; {hint}`adaptcl run --help-all` lists them all."
    )


def _custom_classes(values: Mapping[str, Any]) -> dict[str, StrategyClass | CodecClass]:
    custom: dict[str, StrategyClass | CodecClass] = {}
    custom |= {name: strategy_class(name) for name in named_strategies(values) if is_custom(name)}
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


def _with_several_defaults(chosen: type) -> set[str]:
    """The settings for which some strategy, or the `chosen` group, has a default of its own."""
    known = _shipped_settings()
    return {
        each.name
        for group in (chosen, *(each.Settings for each in STRATEGIES.values()))
        for each in declared(group)
        if each.default != known.get(each.name, each).default
    }


def _refuse_clash(name: str, new: Setting, known: Mapping[str, Setting]) -> None:
    """Refuse a setting of a custom class that redefines a name; a new default is allowed."""
    before = known.get(new.name, new)
    if new.name in _RESERVED or dataclasses.replace(new, default=before.default) != before:
        raise SettingError(
            f"{name} has a setting {new.name}, but that name has another meaning already; choose "
            "another name."
        )


@dataclass(frozen=True)
class Config:
    """All settings of one run, checked."""

    job: JobSettings
    recipe: Recipe
    environment: EnvironmentSettings
    strategy: Any  # the settings of the chosen strategy
    codec: Any  # the settings of the chosen codec

    def values(self) -> dict[str, Any]:
        """Every setting of this run by name, those of the chosen strategy and codec included."""
        groups = (self.job, self.recipe, self.environment, self.strategy, self.codec)
        return {k: v for group in groups for k, v in dataclasses.asdict(group).items()}

    @property
    def pruning(self) -> str:
        """The pruning order; empty if the strategy prunes by none."""
        return str(getattr(self.strategy, "pruning", ""))

    @property
    def codecs(self) -> Codecs:
        return codecs(self.job.codec, self.job.codec_down, dataclasses.asdict(self.codec))

    def stop_rule(self, measure: Measure) -> StopRule:
        """What ends the run before all its rounds are done; `measure` is its main metric."""
        job, conditions = self.job, dict[str, StopCondition]()
        if job.target_accuracy and measure.name != "accuracy":
            raise SettingError(
                f"target_accuracy is for runs whose main metric is accuracy, but here it is "
                f"{measure.name}; give target instead."
            )
        if job.max_virtual_time:
            conditions["max_virtual_time"] = time_limit(job.max_virtual_time)
        if job.target_accuracy:
            conditions["target_accuracy"] = target(job.target_accuracy / 100, measure)
        if job.target is not None:
            conditions["target"] = target(job.target, measure)
        if job.early_stopping:
            conditions["early_stopping"] = early_stopping(job.early_stopping, measure)
        return StopRule(conditions)

    @property
    def fresh_statistics(self) -> int:
        """How many samples the statistics of a tested model are measured on; 0 for none.

        A strategy may have it as a part of its method (`static_batch_norm`).
        """
        is_static = getattr(self.strategy, "static_batch_norm", False)
        return self.job.fresh_statistics or (USUAL_COUNT if is_static else 0)

    @property
    def named_methods(self) -> tuple[str, ...]:
        """The strategy, codec and pruning order, each of which may be custom code."""
        return (self.job.strategy, self.job.codec, self.pruning)

    def with_absolute_paths(self) -> Config:
        """Copy it with absolute paths, so that a run can be resumed from any folder."""
        job, environment = self.job, self.environment
        return dataclasses.replace(
            self,
            job=dataclasses.replace(
                job, data=data.anchored(job.data), data_dir=_absolute(job.data_dir)
            ),
            environment=dataclasses.replace(environment, trace=_absolute(environment.trace)),
        )

    def to_toml(self) -> str:
        """Write a complete settings file that makes the same run again.

        The same file with another strategy must give that one its own defaults. So settings whose
        default depends on the strategy stand in this strategy's section, if they have an effect.
        """
        values = {name: value for name, value in self.values().items() if value is not None}
        differing = _with_several_defaults(type(self.strategy))
        unused = getattr(strategy_class(self.job.strategy), "unused", ())
        own = {k: v for k, v in values.items() if k in differing and k not in unused}
        shared = {name: value for name, value in values.items() if name not in differing}
        return tomli_w.dumps(shared | ({self.job.strategy: own} if own else {}))


def configure(values: Mapping[str, Any], known: Mapping[str, Setting] | None = None) -> Config:
    """Check raw values, name by name, and make a configuration of them.

    A section named like a strategy holds values for this strategy alone, and for custom ones
    derived from it. `known` are the allowed settings; the default is those that `values` call for.
    """
    known = all_settings(values) if known is None else known
    sections = {name: _checked_section(name, values[name]) for name in values if is_section(name)}
    top = {name: value for name, value in values.items() if name not in sections}
    for name, value in itertools.chain(top.items(), *(each.items() for each in sections.values())):
        if name not in known:
            raise unknown_setting(name, known)
        known[name].checked(value)
    for name in sections_for(build(JobSettings, top).strategy):
        top |= sections.get(name, {})
    job = build(JobSettings, top)
    return Config(
        job=job,
        recipe=build(Recipe, top),
        environment=build(EnvironmentSettings, top),
        strategy=build(strategy_class(job.strategy).Settings, top),
        codec=build(codec_class(job.codec).Settings, top),
    )


def sections_for(strategy: str) -> list[str]:
    """List the sections that a strategy reads; later ones win."""
    if not is_custom(strategy):
        return [strategy]
    bases = getattr(strategy_class(strategy), "__mro__", ())
    return [*(name for name, shipped in STRATEGIES.items() if shipped in bases), strategy]


def settings_from_python(settings: Mapping[str, Any], *, dealt: bool) -> dict[str, Any]:
    """Check the settings of a call of `adaptcl.run`, and replace classes by their names.

    A setting that contradicts the call, such as a data set's name, is refused: ignoring it would
    run something else than was asked for. `dealt` says whether the training data comes with one
    data set for each worker.
    """
    for name in ("data", "data_dir"):
        if name in settings:
            raise SettingError(
                f"{name} is {settings[name]!r}, but the data is given as train and test; leave "
                f"{name} out."
            )
    for name in ("partition", "label_share", "concentration"):
        if dealt and name in settings:
            raise SettingError(
                f"{name} is {settings[name]!r}, but train is a list with a data set for each "
                f"worker, which is not dealt again; leave {name} out."
            )
    for name in ("seed", "strategy"):
        if isinstance(settings.get(name), list | tuple | range):
            raise SettingError(
                f"{name} is {settings[name]!r}, but adaptcl.run makes one run; adaptcl.sweep makes "
                "one for each."
            )
    return {k: import_name(v, k) if inspect.isclass(v) else v for k, v in settings.items()}


def _checked_section(name: str, values: Any) -> Mapping[str, Any]:
    for each in (*declared(JobSettings), *declared(EnvironmentSettings)):
        if each.name in section(name, values):
            raise SettingError(
                f"[{name}] sets {each.name}, which is the same for all strategies of a job. Set it "
                "above the sections (a sweep takes a list there), or make two sweeps: `adaptcl "
                "compare A B` joins them."
            )
    return section(name, values)


def _absolute(path: str) -> str:
    return os.path.abspath(path) if path else ""
