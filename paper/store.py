"""The folder of results: finding a run's result, and refusing results that do not go together.

Behind a full barrier, and with the whole model for every worker, no environment changes what is
learned. Each round takes as long as its slowest worker, which follows from sizes and bandwidths
alone. So a FedAVG run is trained once, and its clock is computed for every σ and B_max.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from adaptcl.config import Config
from adaptcl.engines.heterogeneity import MIB, bandwidths, heterogeneity
from adaptcl.errors import AdaptCLError
from paper.identity import clock_is_free, recorded_settings, run_id, run_key
from paper.profile import Profile
from paper.result import FORMAT, ResultError, RunResult

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
        result.whole.bytes / MIB, environment.bandwidth_max, train, environment.sigma, workers
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
