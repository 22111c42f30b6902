"""Settings that have no effect in a run, and how somebody who gave one is told.

They are no error: a command names several strategies, and a settings file serves more than one. But
whoever sets the sparsity of a codec that is not chosen should hear of it before the run, not after;
and runs that differ only in what does nothing do not differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from adaptcl.codecs import CODECS
from adaptcl.config import Config, JobSettings
from adaptcl.engines.environment import EnvironmentSettings
from adaptcl.settings import Condition, declared, is_custom
from adaptcl.strategies import STRATEGIES
from adaptcl.training import Recipe

_SHARED = (JobSettings, Recipe, EnvironmentSettings)
"""Groups of settings that a run has with every strategy and every codec."""
CONDITIONS: Mapping[str, Condition] = {
    each.name: each.condition
    for group in (
        *_SHARED,
        *(strategy.Settings for strategy in STRATEGIES.values()),
        *(codec.Settings for codec in CODECS.values()),
    )
    for each in declared(group)
    if each.condition is not None
}
"""Of the settings that others can make idle: what it takes for them not to be."""


def has_effect(name: str, settings: Mapping[str, Any]) -> bool:
    """Whether a setting of a run has any, as far as its other settings tell."""
    condition = CONDITIONS.get(name)
    if condition is not None and not condition.holds(settings):
        return False
    strategy = STRATEGIES.get(settings.get("strategy", ""))
    return strategy is None or name not in strategy.unused


def idle(given: Iterable[str], configs: Sequence[Config]) -> list[str]:
    """A sentence for each of the given settings that changes nothing in any of these runs.

    A section is none of them: it is for one strategy, whether that is run or not.
    """
    names = [name for name in given if name not in STRATEGIES and not is_custom(name)]
    runs = [each.values() for each in configs]
    return [
        f"{name} has no effect {_reason(name, runs)}."
        for name in names
        if not any(name in run and has_effect(name, run) for run in runs)
    ]


def _reason(name: str, runs: Sequence[Mapping[str, Any]]) -> str:
    condition = CONDITIONS.get(name)
    for run in runs:
        if name in run and condition is not None and not condition.holds(run):
            return condition.refusal(run)
    for of, users in (("strategy", _strategies_using(name)), ("codec", _codecs_using(name))):
        if users:
            chosen = ", ".join(dict.fromkeys(run[of] for run in runs))
            return f"with {of} {chosen}; it is for {', '.join(users)}"
    return "in these runs"


def _strategies_using(name: str) -> list[str]:
    return [
        strategy
        for strategy, each in STRATEGIES.items()
        if name in _names(*_SHARED, each.Settings) and name not in each.unused
    ]


def _codecs_using(name: str) -> list[str]:
    return [codec for codec, each in CODECS.items() if name in _names(each.Settings)]


def _names(*groups: type) -> set[str]:
    return {each.name for group in groups for each in declared(group)}
