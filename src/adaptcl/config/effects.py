"""Which settings matter in a run.

A setting may have no effect: the sparsity of a codec that is not chosen, or sigma where every
bandwidth is set. That is no error, because one command can name several strategies and one settings
file can serve several runs. But the user hears of it before the run, and runs that differ in
nothing else count as the same run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from adaptcl.codecs import CODECS
from adaptcl.config.config import SHARED_GROUPS, Config, all_settings, sections_for
from adaptcl.config.files import named_strategies, preset_and_file
from adaptcl.data import is_shipped
from adaptcl.engines.environment import EnvironmentSettings
from adaptcl.settings import Setting, When, declared, is_custom
from adaptcl.strategies import STRATEGIES, strategy_class

WHERE_COMPUTED = ("data_dir", "device", "precision", "threads", "checkpoint_every")
"""Settings that say where and how a run is computed, not what it learns."""

_SIMULATED = frozenset(each.name for each in declared(EnvironmentSettings))

CONDITIONS: Mapping[str, When] = {
    each.name: each.condition for each in all_settings().values() if each.condition is not None
}
"""By setting, the condition under which it has an effect."""

_LISTS = ("strategy", "seed")  # settings for which a file may list several values, one for each run


def has_effect(
    name: str,
    settings: Mapping[str, Any],
    *,
    networked: bool = False,
    unused: Collection[str] = (),
) -> bool:
    """Say whether a setting has an effect beside the other settings of a run.

    In a run across a network those of simulated machines have none. A custom strategy is not
    imported here, because the settings may come from the run folder of somebody else: whoever has
    its class says what it leaves `unused`.
    """
    if networked and name in _SIMULATED:
        return False
    condition = CONDITIONS.get(name)
    if condition is not None and condition.refusal(settings):
        return False
    shipped = STRATEGIES.get(settings.get("strategy", ""))
    return name not in (shipped.unused if shipped else unused)


def unused_settings(config: Config) -> Collection[str]:
    """The settings that the strategy of a run declares to have no effect on it."""
    found: Collection[str] = getattr(strategy_class(config.job.strategy), "unused", ())
    return found


def settings_in_effect(
    settings: Mapping[str, Any], *, unused: Collection[str] = ()
) -> dict[str, Any]:
    """Select the settings that decide what a run learns, in the order given.

    `settings` are all of a run, as `Config.values()` or its record has them. Two runs with the same
    settings in effect are the same run, wherever they are computed.
    """
    return {
        name: value
        for name, value in settings.items()
        if name not in WHERE_COMPUTED and has_effect(name, settings, unused=unused)
    }


def explain_ineffective(names: Iterable[str], configs: Sequence[Config]) -> list[str]:
    """Write a sentence for each named setting that has no effect in any of these runs, and one for
    an α that may be meant for Dirichlet.

    Sections are skipped: each is for one strategy, whether that one runs or not.
    """
    given, runs = [*names], [each.values() for each in configs]
    unused = [unused_settings(each) for each in configs]
    is_dirichlet = any(run["partition"] == "dirichlet" for run in runs)
    misread = is_dirichlet and "alpha" in given and "concentration" not in given
    sentences = ["alpha is AdaptCL's caution; the α of Dirichlet is concentration."] * misread
    if "data_dir" in given:
        shipped = {run["data"] for run in runs if is_shipped(run["data"])}
        sentences += [f"data_dir has no effect with data {name}, which ships." for name in shipped]
    return sentences + [
        f"{name} has no effect {_reason(name, runs)}."
        for name in given
        if name not in STRATEGIES
        and not is_custom(name)
        and not any(
            name in run and has_effect(name, run, unused=each)
            for run, each in zip(runs, unused, strict=True)
        )
    ]


def changed_settings(path: Path, preset_name: str | None = None) -> list[str]:
    """List the settings that a TOML file changes from its preset, or from the default.

    Sections are skipped, as each is for one strategy.
    """
    below, values = preset_and_file(path, preset_name)
    known = all_settings(values)
    strategies = list(filter(None, named_strategies(values))) or [known["strategy"].default]
    usual = [_usual_values(below, each, known) for each in strategies]
    return [
        name
        for name, value in values.items()
        if name in known
        and name not in _LISTS
        and known[name].checked(value) not in [known[name].checked(each[name]) for each in usual]
    ]


def _usual_values(
    preset_values: Mapping[str, Any], strategy: str, known: Mapping[str, Setting]
) -> dict[str, Any]:
    """The value of each setting with a preset and a strategy that may have defaults of its own."""
    usual = {each.name: each.default for each in known.values()}
    usual |= {each.name: each.default for each in declared(strategy_class(strategy).Settings)}
    usual |= preset_values
    for section in sections_for(strategy):
        usual |= preset_values.get(section, {})
    return usual


def _reason(name: str, runs: Sequence[Mapping[str, Any]]) -> str:
    condition = CONDITIONS.get(name)
    for run in runs:
        if name in run and condition is not None and (refusal := condition.refusal(run)):
            return refusal
    for part, users in (("strategy", _strategies_using(name)), ("codec", _codecs_using(name))):
        if users:
            chosen = ", ".join(dict.fromkeys(run[part] for run in runs))
            return f"with {part} {chosen}; it is for {', '.join(users)}"
    return "in these runs"


def _strategies_using(name: str) -> list[str]:
    return [
        strategy
        for strategy, each in STRATEGIES.items()
        if name in _names(*SHARED_GROUPS, each.Settings) and name not in each.unused
    ]


def _codecs_using(name: str) -> list[str]:
    return [codec for codec, each in CODECS.items() if name in _names(each.Settings)]


def _names(*groups: type) -> set[str]:
    return {each.name for group in groups for each in declared(group)}
