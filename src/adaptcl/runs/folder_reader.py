"""What the files of a run are called."""

from __future__ import annotations

import json
import os
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tomli_w
from safetensors import SafetensorError
from safetensors.torch import load_file

from adaptcl import storage as snapshot
from adaptcl.data.samples import Inputs
from adaptcl.errors import RunFolderError
from adaptcl.records import RoundRecord, Summary
from adaptcl.runs.sub_models import SubModels
from adaptcl.units import State

CONFIG = "config.toml"
ROUNDS = "rounds.jsonl"
LOCK = ".lock"
MARKS = ".begun-with.json"
CHECKPOINT = "checkpoint.safetensors"
KEPT = "longer.safetensors"
"""The checkpoint from before a run's last round, which more rounds can follow on."""
SUMMARY = "summary.json"
FIGURES = "figures"
"""The folder of drawings beside what a run leaves, or beside the runs of several strategies."""


# `network.toml` in a run's folder: that the run is one of a network, and where it took place.

NAME = "network.toml"


@dataclass(frozen=True)
class NetworkFile:
    """What going on with the run needs beside its settings."""

    run: str
    """The name by which workers know the run."""
    listen: str
    tls: str
    patience: float
    job: str = ""
    """A name that the runs of one command share; the same workers do them one after the other."""
    turn: int = 0
    """Which of those it is."""

    def to_toml(self) -> str:
        """As it stands in the file."""
        return tomli_w.dumps(asdict(self))

    @classmethod
    def read(cls, folder: Path) -> NetworkFile:
        """From the folder of a run that a server began."""
        try:
            return cls(**tomllib.loads((folder / NAME).read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise RunFolderError(f"{folder} does not hold a run of `adaptcl server`.") from None
        except (OSError, TypeError, ValueError) as error:
            raise RunFolderError(f"{folder / NAME} cannot be read: {error}.") from None


def is_network_run(folder: Path) -> bool:
    """Whether a server began the run in this folder."""
    return (folder / NAME).is_file()


# What a run has left in its folder, for whoever only looks at it.

_TRACES = (LOCK, ROUNDS)
"""What every run leaves, if its folder was not copied without hidden files or before a round."""


def is_run_folder(path: Path) -> bool:
    """Whether a run was begun in this folder."""
    return os.path.isfile(path / CONFIG)  # False, not an error, where nobody may look


def run_folders(path: Path, levels: int = 1) -> list[Path]:
    """The folder itself if it is a run's, else those up to so many levels below; by name."""
    if is_run_folder(path):
        return [path]
    found = [each.parent for each in path.glob("*/config.toml") if each.is_file()]
    for level in range(2, levels + 1):
        deeper = [each.parent for each in path.glob("*/" * level + CONFIG)]
        # The deeper, the likelier another program's config.toml; a run leaves more than that.
        found += [each for each in deeper if any((each / name).is_file() for name in _TRACES)]
    return sorted(found)


def read_finished(path: Path) -> tuple[Summary, tuple[RoundRecord, ...]] | None:
    """Summary and rounds that a finished run left in its folder; None if unfinished."""
    if not (path / SUMMARY).exists():
        return None
    try:
        summary = Summary.from_json(json.loads((path / SUMMARY).read_bytes()))
        lines = (path / ROUNDS).read_bytes().splitlines()
        records = tuple(RoundRecord.from_json(json.loads(line)) for line in lines)
        return summary, records
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path} is damaged and cannot be read: {error}.") from None


def read_settings(path: Path) -> dict[str, Any]:
    """The settings a run was begun with, as `config.toml` has them."""
    if not is_run_folder(path):
        raise RunFolderError(f"{path} is not a run folder: it has no config.toml.")
    try:
        return tomllib.loads((path / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path / CONFIG} is damaged and cannot be read: {error}.") from None


def read_marks(path: Path) -> dict[str, Any] | None:
    """What a run is recognised by, as it was begun with; None if that was not noted."""
    file = path / MARKS
    if not file.exists():
        return None
    try:
        found: dict[str, Any] = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{file} is damaged and cannot be read: {error}.") from None
    return found


def read_delivered(path: Path) -> tuple[State, Inputs, SubModels]:
    """The model that a finished run left, what it takes, and the part that each worker has."""
    if not (path / SUMMARY).exists():
        raise RunFolderError(f"{path} is not finished; `adaptcl resume {path}` goes on with it.")
    try:
        state = load_file(path / "model.safetensors")
        inputs = Inputs.from_json(json.loads((path / "inputs.json").read_bytes()))
        sub_models = SubModels.from_tree(snapshot.load(path / "sub-models.safetensors"))
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise RunFolderError(f"{path} is damaged and cannot be read: {error}.") from None
    return state, inputs, sub_models
