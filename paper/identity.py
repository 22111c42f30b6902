"""The identity of a run: the settings that decide what it learns, and nothing else.

Experiments that need the same run share its result. Neither where a run was computed matters, nor
any setting that has no effect with its strategy. A setting at its default is left out, so a result
stays valid when a later version adds a setting. A comparison always starts from a result's full
settings and today's defaults, so a default that *changes* makes another run.

Behind a full barrier, and with the whole model for every worker, what is learned does not depend
on update times. Such a run is the same run in every environment; `store.reclock` computes its
clock in each.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from adaptcl.codecs import CODECS, down_codec
from adaptcl.config import JobSettings
from adaptcl.config.effects import WHERE_COMPUTED, settings_in_effect
from adaptcl.engines.environment import EnvironmentSettings
from adaptcl.settings import declared
from adaptcl.strategies import STRATEGIES
from adaptcl.strategies.aggregation import AggregationSettings
from adaptcl.training import Recipe

_ENVIRONMENT = tuple(field.name for field in dataclasses.fields(EnvironmentSettings))
_FULL_BARRIER = ("fedavg", "fedavg-s")
_STEADY = {
    "training_time": "profile",
    "samples_share": 0.0,
    "jitter": 0.0,
    "trace": "",
    "max_virtual_time": 0.0,
}
"""Only with these values is the time of a round known without running it."""
_STEADY_CODECS = ("plain", "fp16", "int8")
"""With these, equal models have equally many bytes in every round."""
_HARMLESS = {field.name for field in dataclasses.fields(AggregationSettings)} | {"late_updates"}
"""Settings of a strategy with a barrier that change neither the barrier nor the time of a round.
Any other setting, also a future one, might."""
_BEFORE = {"fading": 0.0, "target_time": "fastest", "least_speed_up": 1.0}
"""Settings that older results lack and that had another effect then than their default has."""
_NO_CODEC_DOWN = {"codec_down": "plain"}
"""What older results lack: models were sent to workers as they are."""
_REMOVED = {"adapt_strength": False}
"""Settings that no longer exist, at the value without effect; older results still name them."""


def clock_is_free(settings: Mapping[str, Any]) -> bool:
    """Whether the run learns the same in every environment and its time is computable."""
    if settings["strategy"] not in _FULL_BARRIER:
        return False
    defaults = {
        each.name: each.default for each in declared(STRATEGIES[settings["strategy"]].Settings)
    }
    barrier = {name: default for name, default in defaults.items() if name not in _HARMLESS}
    codecs = (settings.get("codec", "plain"), _codec_down(settings)["codec_down"])
    if not all(codec in _STEADY_CODECS for codec in codecs):
        return False
    return all(settings.get(name, value) == value for name, value in {**_STEADY, **barrier}.items())


def identifying_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that set a run apart from other runs, sorted by name."""
    without = _ENVIRONMENT if clock_is_free(settings) else ()
    defaults = _REMOVED | _defaults(settings) | _NO_CODEC_DOWN
    values = _BEFORE | plain_values(settings) | _codec_down(settings)
    in_effect = settings_in_effect(values)
    return {
        name: in_effect[name]
        for name in sorted(in_effect)
        if name not in without and in_effect[name] != defaults.get(name, _UNKNOWN)
    }


def _codec_down(settings: Mapping[str, Any]) -> dict[str, str]:
    """The codec that models were sent with, which 'same' does not say."""
    values = _NO_CODEC_DOWN | dict(settings)
    return {"codec_down": down_codec(values.get("codec", "plain"), values["codec_down"])}


def run_key(settings: Mapping[str, Any]) -> str:
    """A text that is equal for two runs if and only if they are the same run."""
    return json.dumps(identifying_settings(settings), sort_keys=True)


def recorded_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a result records: all but those of where and how it was computed."""
    return {k: v for k, v in plain_values(settings).items() if k not in WHERE_COMPUTED}


def run_id(settings: Mapping[str, Any], data_sha256: str) -> str:
    """A name for a run's files, from its recorded settings and its data."""
    text = json.dumps([recorded_settings(settings), data_sha256], sort_keys=True)
    return f"{settings['strategy']}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def plain_values(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as JSON gives them back: lists instead of tuples."""
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
