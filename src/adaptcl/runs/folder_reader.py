"""Reads the folder of a run, and names its files."""

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

from adaptcl import storage
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
"""The checkpoint from before the last round, for a run that gets more rounds."""
BEST = "best.safetensors"
KEPT_BEST = "longer-best.safetensors"
"""The best model from before the last round, for a run that gets more rounds."""
SUMMARY = "summary.json"
FIGURES = "figures"
"""The folder of figures beside a run, or beside the runs of several strategies."""
NETWORK_FILE = "network.toml"


@dataclass(frozen=True)
class NetworkFile:
    """`network.toml`: what `adaptcl server` needs to resume a run beside its settings."""

    run: str
    """The name by which workers know the run."""
    listen: str
    tls: str
    patience: float
    job: str = ""
    """A name that the runs of one command share. The same workers do them one after the other."""
    turn: int = 0
    """The position of the run among those of its command."""

    def to_toml(self) -> str:
        return tomli_w.dumps(asdict(self))

    @classmethod
    def read(cls, folder: Path) -> NetworkFile:
        try:
            return cls(**tomllib.loads((folder / NETWORK_FILE).read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise RunFolderError(f"{folder} does not hold a run of `adaptcl server`.") from None
        except (OSError, TypeError, ValueError) as error:
            raise RunFolderError(f"{folder / NETWORK_FILE} cannot be read: {error}.") from None


def is_network_run(folder: Path) -> bool:
    """Whether `adaptcl server` began the run in this folder."""
    return (folder / NETWORK_FILE).is_file()


_TRACES = (LOCK, ROUNDS)
"""Files of which every run leaves one, even if it is copied without hidden files."""


def is_run_folder(path: Path) -> bool:
    return os.path.isfile(path / CONFIG)  # False, not an error, where nobody may look


def run_folders(path: Path, levels: int = 1) -> list[Path]:
    """The folder itself if it holds a run, else those with runs up to `levels` below, sorted."""
    if is_run_folder(path):
        return [path]
    found = [each.parent for each in path.glob("*/config.toml") if each.is_file()]
    for level in range(2, levels + 1):
        deeper = [each.parent for each in path.glob("*/" * level + CONFIG)]
        # Deeper down, config.toml may be another program's. A run leaves more than that.
        found += [each for each in deeper if any((each / name).is_file() for name in _TRACES)]
    return sorted(found)


def read_finished(path: Path) -> tuple[Summary, tuple[RoundRecord, ...]] | None:
    """Summary and rounds of a finished run; None if it is unfinished."""
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
    """The settings of a run, from `config.toml`."""
    if not is_run_folder(path):
        raise RunFolderError(f"{path} is not a run folder: it has no config.toml.")
    try:
        return tomllib.loads((path / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path / CONFIG} is damaged and cannot be read: {error}.") from None


def read_marks(path: Path) -> dict[str, Any] | None:
    """What a run was begun with (`runs/identity.py`); None if that is not on record."""
    file = path / MARKS
    if not file.exists():
        return None
    try:
        found: dict[str, Any] = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{file} is damaged and cannot be read: {error}.") from None
    return found


def read_best(path: Path) -> State:
    """The model of a finished run that had the best test."""
    finished = read_finished(path)
    if finished is not None and finished[0].best_round == finished[0].rounds:
        return read_delivered(path)[0]
    if not (path / BEST).exists():
        raise RunFolderError(f"{path} does not hold the model of its best test.")
    try:
        return load_file(path / BEST)
    except (OSError, SafetensorError) as error:
        raise RunFolderError(f"{path} is damaged and cannot be read: {error}.") from None


def read_delivered(path: Path) -> tuple[State, Inputs, SubModels]:
    """The model of a finished run, the inputs it takes, and the workers' sub-models."""
    if not (path / SUMMARY).exists():
        raise RunFolderError(f"{path} is not finished; `adaptcl resume {path}` goes on with it.")
    try:
        state = load_file(path / "model.safetensors")
        inputs = Inputs.from_json(json.loads((path / "inputs.json").read_bytes()))
        sub_models = SubModels.from_tree(storage.load(path / "sub-models.safetensors"))
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise RunFolderError(f"{path} is damaged and cannot be read: {error}.") from None
    return state, inputs, sub_models
