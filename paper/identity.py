"""Which run a run is: the settings that decide what it learns, and nothing else.

Two experiments that need the same run share its result. Where it was computed does not matter,
nor does anything the chosen strategy has no use for. A setting at its default is left out, so a
result stays good when a later version adds a setting; because the comparison is always made from
a result's full settings and the defaults of today, a default that *changes* parts the runs.

With a barrier and the whole model for everybody, what is learned does not depend on how long
anybody takes. Such a run is the same run in every environment, and `clock.py` tells its time in
each.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from adaptcl.codecs import CODECS
from adaptcl.config import JobSettings
from adaptcl.config.effects import has_effect
from adaptcl.engines.environment import EnvironmentSettings
from adaptcl.settings import declared
from adaptcl.strategies import STRATEGIES
from adaptcl.strategies.aggregation import AggregationSettings
from adaptcl.training import Recipe

_WITHOUT_EFFECT = ("data_dir", "device", "precision", "threads", "checkpoint_every")
_ENVIRONMENT = tuple(field.name for field in dataclasses.fields(EnvironmentSettings))
_FULL_BARRIER = ("fedavg", "fedavg-s")
_STEADY = {
    "codec": "plain",
    "training_time": "profile",
    "samples_share": 0.0,
    "jitter": 0.0,
    "trace": "",
}
"""Only then is the time of a round known without running it."""
_OF_NO_ACCOUNT = {field.name for field in dataclasses.fields(AggregationSettings)} | {
    "late_updates"
}
"""Settings of a strategy with a barrier that neither lower it nor change how long a round takes.
Any other, also one that does not exist yet, is taken for one that might."""
_ONCE = {"fading": 0.0}
"""What a setting with another default came to in results from before it existed."""
_REMOVED = {"adapt_strength": False}
"""Settings that no longer exist, at the value without effect; older results still name them."""


def clock_is_free(settings: Mapping[str, Any]) -> bool:
    """Whether the run learns the same in every environment and its time can be computed."""
    if settings["strategy"] not in _FULL_BARRIER:
        return False
    own = {each.name: each.default for each in declared(STRATEGIES[settings["strategy"]].Settings)}
    barrier = {name: default for name, default in own.items() if name not in _OF_NO_ACCOUNT}
    return all(settings.get(name, value) == value for name, value in {**_STEADY, **barrier}.items())


def what_matters(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Of the full settings of a run, those that tell it from other runs, sorted by name."""
    without = (*_WITHOUT_EFFECT, *(_ENVIRONMENT if clock_is_free(settings) else ()))
    defaults = _REMOVED | _defaults(settings)
    plain = _ONCE | plain_values(settings)
    return {
        name: plain[name]
        for name in sorted(plain)
        if name not in without
        and has_effect(name, plain)
        and plain[name] != defaults.get(name, _UNKNOWN)
    }


def key(settings: Mapping[str, Any]) -> str:
    """What two runs have in common if and only if they are the same run."""
    return json.dumps(what_matters(settings), sort_keys=True)


def effective(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings without those that only say where and how to compute."""
    return {k: v for k, v in plain_values(settings).items() if k not in _WITHOUT_EFFECT}


def run_id(settings: Mapping[str, Any], data_sha256: str) -> str:
    """A name for a run's files, from all of its settings that have an effect and its data."""
    text = json.dumps([effective(settings), data_sha256], sort_keys=True)
    return f"{settings['strategy']}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def plain_values(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as JSON gives them back: lists in place of tuples."""
    values: dict[str, Any] = json.loads(json.dumps(dict(settings)))
    return values


_UNKNOWN = object()


def _defaults(settings: Mapping[str, Any]) -> dict[str, Any]:
    groups = [JobSettings, Recipe, EnvironmentSettings]
    strategy = STRATEGIES.get(settings["strategy"])
    codec = CODECS.get(settings.get("codec", "plain"))
    groups += [each.Settings for each in (strategy, codec) if each is not None]
    known = {each.name: each.default for group in groups for each in declared(group)}
    return plain_values(known)
