"""The folder of results: which runs are the same run, and finding a run's result.

Experiments that need the same run share its result. Neither where a run was computed matters, nor
any setting that has no effect with its strategy. A setting at its default is left out, so a result
stays valid when a later version adds a setting. A comparison always starts from a result's full
settings and today's defaults, so a default that *changes* makes another run.

Behind a full barrier, and with the whole model for every worker, no environment changes what is
learned. Each round takes as long as its slowest worker, which follows from sizes and bandwidths
alone. So a FedAVG run is trained once, and its clock is computed for every σ and B_max.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from adaptcl.codecs import CODECS, down_codec
from adaptcl.config.config import Config
from adaptcl.config.effects import WHERE_COMPUTED, settings_in_effect
from adaptcl.config.job import JobSettings
from adaptcl.engines.bandwidths import MIB, bandwidths
from adaptcl.engines.environment import EnvironmentSettings
from adaptcl.engines.heterogeneity import heterogeneity
from adaptcl.errors import AdaptCLError
from adaptcl.settings import declared
from adaptcl.strategies import STRATEGIES
from adaptcl.strategies.aggregation import AggregationSettings
from adaptcl.training import Recipe
from paper.profile import Profile
from paper.result import FORMAT, ResultError, RunResult

_ENVIRONMENT = tuple(field.name for field in dataclasses.fields(EnvironmentSettings))
_FULL_BARRIER = ("fedavg", "fedavg-s")
_STEADY_CLOCK = {"jitter": 0.0, "trace": ""}
"""With these values a task takes the same time whenever it is done."""
_STEADY = {**_STEADY_CLOCK, "samples_share": 0.0, "max_virtual_time": 0.0}
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
_REMOVED = {
    "adapt_strength": False,
    "bn_variance": "std",
    "dgc_momentum": 0.0,
    "literal_min_retention": False,
    "staleness_weight": "polynomial",
    "staleness_slope": 10.0,
    "staleness_hinge": 4,
    "training_time": "profile",
}
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
    values = _BEFORE | plain_values(settings) | _codec_down(settings) | _growth(settings)
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


def _growth(settings: Mapping[str, Any]) -> dict[str, bool]:
    """Whether sub-models can grow: never where no worker becomes faster."""
    is_steady = all(settings.get(name, value) == value for name, value in _STEADY_CLOCK.items())
    return {"grow": settings.get("grow", False) and not is_steady}


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


T = TypeVar("T")


@dataclass
class Store:
    """All results of one folder, in memory."""

    folder: Path
    runs: dict[str, RunResult] = field(default_factory=dict)
    """By the key of their settings."""
    profiles: dict[str, Profile] = field(default_factory=dict)
    """By the name of their file."""

    @classmethod
    def open(cls, folder: Path) -> Store:
        """Read a folder; a missing folder holds nothing."""
        store = cls(folder)
        for path in sorted(folder.glob("*.json")):
            values = _read(path)
            if values.get("kind") == "profile":
                store.profiles[path.name] = _parse(path, values, Profile.from_json)
            else:
                store.add(path)
        for run in list(store.runs.values()):
            store.refuse_other_data(run.settings["data"], run.provenance.data_sha256)
        return store

    @classmethod
    def existing(cls, folder: Path) -> Store:
        """Read a folder that must exist, for commands that only show results."""
        if not folder.is_dir():
            raise ResultError(
                f"There is no folder of results {folder}; name one with --results, or make your "
                "own results with `python -m paper all`."
            )
        return cls.open(folder)

    def find(self, config: Config) -> RunResult | None:
        """The result of a run, on the clock of the configuration's environment."""
        found = self.runs.get(run_key(config.values()))
        return None if found is None else reclock(found, config)

    def refuse_other_data(self, name: str, sha256: str) -> None:
        """Raise an error if results here come from another file of the same data set."""
        for run in self.runs.values():
            if run.settings["data"] == name and run.provenance.data_sha256 != sha256:
                raise ResultError(
                    f"{self.folder} holds runs on another file of {name} (SHA-256 "
                    f"{run.provenance.data_sha256[:12]}…, not {sha256[:12]}…); use another "
                    "--results folder."
                )

    def add(self, path: Path) -> RunResult:
        """Read one run's result and keep it."""
        result = _parse(path, _read(path), RunResult.from_json)
        self.runs[run_key(result.settings)] = result
        return result


def result_path(folder: Path, settings: Mapping[str, Any], data_sha256: str) -> Path:
    return folder / f"{run_id(settings, data_sha256)}.json"


def reclock(result: RunResult, config: Config) -> RunResult:
    """The run as it would have gone in the configuration's environment.

    A run that depends on its environment comes back as it is: only a configuration with the same
    environment finds it.
    """
    if not clock_is_free(result.settings):
        return result
    times = _update_times(result, config)
    slowest, unequal = max(times), heterogeneity(times)
    rounds = result.course.round
    course = replace(
        result.course,
        virtual_time_s=tuple(round(slowest * number, 3) for number in rounds),
        heterogeneity=tuple(round(unequal, 5) for _ in rounds),
    )
    summary = replace(
        result.summary,
        virtual_time_s=slowest * result.summary.rounds,
        best_virtual_time_s=slowest * result.summary.best_round,
        heterogeneity_first=unequal,
        heterogeneity_last=unequal,
    )
    workers = tuple(
        replace(each, update_time_s=tuple(round(time, 3) for time in times))
        for each in result.workers
    )
    settings = recorded_settings(config.values())
    return replace(result, settings=settings, course=course, summary=summary, workers=workers)


def _update_times(result: RunResult, config: Config) -> list[float]:
    """Each worker's φ: receiving the whole model, training it, and sending it back."""
    environment, workers = config.environment, config.job.workers
    train = environment.train_time * config.recipe.epochs / environment.profile_epochs
    rates = environment.bandwidths or bandwidths(
        result.whole.bytes / MIB,
        environment.bandwidth_max,
        train,
        environment.sigma_of_links,
        workers,
    )
    speeds = environment.speeds or (1.0,) * workers
    tasks = result.summary.rounds * workers
    travels = (result.summary.bytes_sent + result.summary.bytes_received) / tasks / MIB
    return [travels / rate + train / speed for rate, speed in zip(rates, speeds, strict=True)]


def _read(path: Path) -> Mapping[str, Any]:
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ResultError(f"{path} cannot be read: {error}.") from None
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise ResultError(f"{path} is no result of format {FORMAT}.")
    return values


def _parse(path: Path, values: Mapping[str, Any], parse: Callable[[Mapping[str, Any]], T]) -> T:
    try:
        return parse(values)
    except (KeyError, TypeError, AttributeError, AdaptCLError) as error:
        raise ResultError(f"{path} is not a result: {error}.") from None
