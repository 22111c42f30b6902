"""The folder of results: finding what is there, and refusing what does not belong together."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from adaptcl.config import Config
from adaptcl.errors import AdaptCLError
from paper.clock import reclocked
from paper.identity import key, run_id
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
        """Read a folder; one that is not there holds nothing."""
        store = cls(folder)
        for path in sorted(folder.glob("*.json")):
            values = _read(path)
            if values.get("kind") == "profile":
                store.profiles[path.name] = _parsed(path, values, Profile.from_json)
            else:
                store.take(path)
        for run in list(store.runs.values()):
            store.refuse_other_data(run.settings["data"], run.provenance.data_sha256)
        return store

    @classmethod
    def existing(cls, folder: Path) -> Store:
        """Read a folder that must be there, for those who only look at results."""
        if not folder.is_dir():
            raise ResultError(
                f"There are no results to look at, because there is no folder {folder}; name one "
                "by --results, or make your own with `python -m paper all`."
            )
        return cls.open(folder)

    def find(self, config: Config) -> RunResult | None:
        """The result of a run, its clock that of the configuration's environment."""
        found = self.runs.get(key(config.values()))
        return None if found is None else reclocked(found, config)

    def refuse_other_data(self, name: str, sha256: str) -> None:
        """An error if results here come from another file of the same data set."""
        for run in self.runs.values():
            if run.settings["data"] == name and run.provenance.data_sha256 != sha256:
                raise ResultError(
                    f"{self.folder} holds runs on another file of {name} (SHA-256 "
                    f"{run.provenance.data_sha256[:12]}…, not {sha256[:12]}…); use another "
                    "--results folder."
                )

    def take(self, path: Path) -> RunResult:
        """Read the result of one run and remember it."""
        result = _parsed(path, _read(path), RunResult.from_json)
        self.runs[key(result.settings)] = result
        return result


def result_path(folder: Path, settings: Mapping[str, Any], data_sha256: str) -> Path:
    """Where the result of a run lies."""
    return folder / f"{run_id(settings, data_sha256)}.json"


def _read(path: Path) -> Mapping[str, Any]:
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ResultError(f"{path} cannot be read: {error}.") from None
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise ResultError(f"{path} is no result of format {FORMAT}.")
    return values


def _parsed(path: Path, values: Mapping[str, Any], parse: Callable[[Mapping[str, Any]], T]) -> T:
    try:
        return parse(values)
    except (KeyError, TypeError, AttributeError, AdaptCLError) as error:
        raise ResultError(f"{path} is not a result: {error}.") from None
