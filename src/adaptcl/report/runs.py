"""Models and data that have no name, because they were given from Python, told apart.

Such runs all say the same in `config.toml`. What they were begun with is on record beside it, for
when they go on, and tells a reader of several runs which of them had the same model and data.
"""

from __future__ import annotations

import json
import tomllib
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaptcl.config.config import FROM_PYTHON
from adaptcl.errors import RunFolderError
from adaptcl.records import RoundRecord, Summary
from adaptcl.runs.folder_reader import is_network_run, read_marks
from adaptcl.strategies import STRATEGIES

_LONGEST_NAME = 16


def identified(config: Mapping[str, Any], marks: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The settings with a name for a model and for data that had none; the same one for equal ones.

    Whatever a seed decides has no part in it: neither the values a model begins with nor how data
    is dealt, unless it was given as dealt already.
    """
    if marks is None:
        return config
    try:
        named = {"model": _model(marks["model"]), "data": _data(marks)}
    except (KeyError, TypeError, ValueError, AttributeError):
        return config  # damaged, which is for whoever goes on with the run to complain of
    return {
        name: named[name] if name in named and value == FROM_PYTHON else value
        for name, value in config.items()
    }


def _model(model: Mapping[str, Any]) -> str:
    made_of = {name: model[name] for name in ("tensors", "code")}
    return f"{model.get('name', 'module')[:_LONGEST_NAME]} {_short(made_of)}"


def _data(marks: Mapping[str, Any]) -> str:
    samples = sum(marks["samples"])
    return f"{samples} samples {_short([marks['origin'], marks['test']])}"


def _short(made_of: Any) -> str:
    return f"{zlib.crc32(json.dumps(made_of).encode()):08x}"[:6]


# Run folders, read back: what tables and figures are made of.
#
# A folder is read as it lies, whether the run is finished, still going or was killed in the
# middle of a line. Only what can no longer be trusted is refused.


@dataclass(frozen=True)
class Run:
    """One run folder in memory."""

    folder: Path
    label: str
    """What the run is called in tables and legends."""
    config: Mapping[str, Any]
    """Its settings, with names for a model and data that were given from Python."""
    rounds: tuple[RoundRecord, ...]
    summary: Summary | None
    """None while the run is unfinished."""

    @property
    def strategy(self) -> str:
        """The strategy the run was started with."""
        return str(self.config["strategy"])

    @property
    def clock(self) -> str:
        """What its times are: those of the simulation, or real ones across a network."""
        return "time" if is_network_run(self.folder) else "virtual time"

    @property
    def prunes(self) -> bool:
        """Whether any worker's retention differed from any other's or from itself over time."""
        return len({w.retention for record in self.rounds for w in record.workers}) > 1


def clock_of(runs: Sequence[Run]) -> str:
    """What the times of several runs are."""
    return " or ".join(sorted({run.clock for run in runs})) or "virtual time"


def read_run(folder: Path) -> Run:
    """Read a run folder; its label is the name of its strategy."""
    if not folder.is_dir():
        raise RunFolderError(f"There is no run folder {folder}.")
    try:
        config = _identified(folder, _read_config(folder))
        rounds = _read_rounds(folder / "rounds.jsonl")
        summary = _read_summary(folder / "summary.json")
    except OSError as error:
        raise RunFolderError(f"{folder} cannot be read: {error.strerror}.") from None
    return Run(folder, str(config["strategy"]), config, rounds, summary)


def by_strategy(runs: Sequence[Run]) -> list[Run]:
    """The runs in the order that `adaptcl strategies` has, those of one strategy as they were.

    So runs make the same table, however they were named: one by one or by a folder above them.
    """
    places = {name: place for place, name in enumerate(STRATEGIES)}
    return sorted(runs, key=lambda run: places.get(run.strategy, len(places)))


def _read_config(folder: Path) -> Mapping[str, Any]:
    path = folder / "config.toml"
    if not path.is_file():
        raise RunFolderError(f"{folder} is not a run folder: it holds no config.toml.")
    try:
        config = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RunFolderError(f"{path} is damaged: {error}.") from None
    if not isinstance(config.get("strategy"), str):
        raise RunFolderError(f"{path} is damaged: it names no strategy.")
    return config


def _identified(folder: Path, config: Mapping[str, Any]) -> Mapping[str, Any]:
    if FROM_PYTHON not in config.values():
        return config
    marks = None
    with suppress(RunFolderError):  # nothing of the run itself is lost
        marks = read_marks(folder)
    return identified(config, marks)


def _read_rounds(path: Path) -> tuple[RoundRecord, ...]:
    """All complete lines; one without its line end was cut off when the run was killed."""
    if not path.is_file():
        return ()
    *lines, last = path.read_bytes().split(b"\n")
    records = [_read_record(path, number, line) for number, line in enumerate(lines, start=1)]
    if last:
        with suppress(RunFolderError):
            records.append(_read_record(path, len(lines) + 1, last))
    return tuple(records)


def _read_record(path: Path, number: int, line: bytes) -> RoundRecord:
    try:
        return RoundRecord.from_json(json.loads(line))
    except (ValueError, RunFolderError) as error:
        reason = "not JSON" if isinstance(error, ValueError) else "not a round"
        raise RunFolderError(f"{path} is damaged: line {number} is {reason}.") from None


def _read_summary(path: Path) -> Summary | None:
    if not path.is_file():
        return None
    try:
        return Summary.from_json(json.loads(path.read_bytes()))
    except (ValueError, RunFolderError) as error:
        reason = "not JSON" if isinstance(error, ValueError) else "not a summary"
        raise RunFolderError(f"{path} is damaged: it is {reason}.") from None
