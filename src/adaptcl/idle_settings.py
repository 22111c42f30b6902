"""Settings that somebody gave and that none of the runs has a use for.

They are no error: a command names several strategies, and a settings file serves more than one. But
whoever sets the sparsity of a codec that is not chosen should hear of it before the run, not after.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from adaptcl.codecs import CODECS
from adaptcl.config import Config
from adaptcl.settings import declared, is_own
from adaptcl.strategies import STRATEGIES

_OF_PARTITIONS = {"label_share": "by-label", "concentration": "dirichlet"}


def idle(given: Iterable[str], configs: Sequence[Config]) -> list[str]:
    """A sentence for each of the given settings that changes nothing in any of these runs.

    A section is none of them: it is for one strategy, whether that is run or not.
    """
    names = [name for name in given if name not in STRATEGIES and not is_own(name)]
    return [sentence for name in names if (sentence := _sentence(name, configs))]


def _sentence(name: str, configs: Sequence[Config]) -> str:
    chosen = [each.job for each in configs]
    if name in ("sigma", "bandwidth_max") and configs[0].environment.bandwidths:
        return f"{name} has no effect beside bandwidths."
    if name in _OF_PARTITIONS:
        if any(job.partition == _OF_PARTITIONS[name] for job in chosen):
            return ""
        return _has_no_effect(name, "partition", chosen[0].partition, [_OF_PARTITIONS[name]])
    if name == "momentum" and all(each.recipe.optimizer != "sgd" for each in configs):
        return _has_no_effect(name, "optimizer", configs[0].recipe.optimizer, ["sgd"])
    having = [each for each in configs if name in each.values()]
    rules = [each.values().get("aggregation", "") for each in having] if name == "fading" else []
    if rules and "by-change" not in rules:
        return _has_no_effect(name, "aggregation", rules[0], ["by-change"])
    if name == "late_updates" and having and not any(c.values().get("deadline") for c in having):
        return "late_updates has no effect without a deadline."
    if having:
        return ""
    strategies, codecs = _having(name, STRATEGIES), _having(name, CODECS)
    if strategies:
        named = ", ".join(dict.fromkeys(job.strategy for job in chosen))
        return _has_no_effect(name, "strategy", named, strategies)
    return _has_no_effect(name, "codec", chosen[0].codec, codecs)


def _having(name: str, kinds: Mapping[str, Any]) -> list[str]:
    return [
        kind
        for kind, each in kinds.items()
        if name in (setting.name for setting in declared(each.Settings))
    ]


def _has_no_effect(name: str, of: str, chosen: str, users: Sequence[str]) -> str:
    return f"{name} has no effect with {of} {chosen}; it is for {', '.join(users)}."
