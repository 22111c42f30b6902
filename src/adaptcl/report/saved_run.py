"""Run folders read back: what tables and figures are made of.

A run may be finished, still going, or killed in the middle of a line; only a damaged file is
refused. A model or data set that came from Python has no name in `config.toml`. Its fingerprint
is on record beside it and gives it one, so that a reader of several runs sees which of them had
the same model and data.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from adaptcl.config.config import FROM_PYTHON
from adaptcl.errors import RunFolderError
from adaptcl.records import RoundRecord, Summary, summarise
from adaptcl.runs.files.run_files import (
    is_network_run,
    read_marks,
    read_rounds,
    read_settings,
    read_summary,
)
from adaptcl.strategies import STRATEGIES
from adaptcl.training.objectives.metrics import Measure
from adaptcl.training.objectives.objective import measure_named

_LONGEST_NAME = 16


@dataclass(frozen=True)
class Run:
    """The content of one run folder."""

    folder: Path
    label: str  # its name in tables and legends
    config: Mapping[str, Any]  # its settings, with names for a model and data that came from Python
    rounds: tuple[RoundRecord, ...]
    summary: Summary | None  # None while the run is unfinished
    networked: bool = False  # whether it ran across a network

    @property
    def strategy(self) -> str:
        return str(self.config["strategy"])

    @property
    def measure(self) -> Measure:
        """The main metric, by which its tests are compared."""
        if self.summary is not None:
            return self.summary.measure
        objective, named, better = (
            str(self.config.get(name, "")) for name in ("objective", "main_metric", "better")
        )
        tested = next((each.metric for each in self.rounds if each.metric is not None), named)
        return measure_named(objective, tested, better)

    @property
    def target(self) -> float | None:
        """The value of the main metric at which it was to end; None if there was none."""
        percent = self.config.get("target_accuracy")
        return percent / 100 if percent else self.config.get("target")

    @property
    def ended_by_target(self) -> bool:
        return self.summary is not None and self.summary.stopped_by in ("target_accuracy", "target")

    @cached_property
    def numbers(self) -> Summary | None:
        """The summary; of an unfinished run what its rounds tell, and NaN for what they do not."""
        if self.summary is not None or not self.rounds:
            return self.summary
        retention = {w.worker: w.retention for record in self.rounds for w in record.workers}
        return summarise(
            self.rounds,
            self.measure,
            strategy=self.strategy,
            wall_time_s=math.nan,
            retention=tuple(retention.values()),
            params_saved=1 - fmean(retention.values()) if retention else math.nan,
            flops_saved=math.nan,
            **{name: self.config.get(name, 0) for name in ("seed", "workers", "model", "data")},
        )

    @property
    def clock(self) -> str:
        """Whether its times are simulated (`virtual time`) or real (`time`)."""
        return "time" if self.networked else "virtual time"

    @property
    def prunes(self) -> bool:
        """Whether retention differs between workers or over time."""
        return len({w.retention for record in self.rounds for w in record.workers}) > 1

    @property
    def adapts(self) -> bool:
        """Whether workers have pruned, by rates that the records tell."""
        return any(w.pruned_rate for record in self.rounds for w in record.workers)


def clock_of(runs: Sequence[Run]) -> str:
    return " or ".join(sorted({run.clock for run in runs})) or "virtual time"


def read_run(folder: Path) -> Run:
    """Read a run folder; its label is the name of its strategy."""
    if not folder.is_dir():
        raise RunFolderError(f"There is no run folder {folder}.")
    config = _named_settings(folder)
    rounds, summary = read_rounds(folder), read_summary(folder)
    return Run(folder, config["strategy"], config, rounds, summary, is_network_run(folder))


def by_strategy(runs: Sequence[Run]) -> list[Run]:
    """Order runs as `adaptcl strategies` lists them; runs of one strategy keep their order.

    So the table is the same whether a user names runs one by one or by the folder above them.
    """
    places = {name: place for place, name in enumerate(STRATEGIES)}
    return sorted(runs, key=lambda run: places.get(run.strategy, len(places)))


def _named_settings(folder: Path) -> Mapping[str, Any]:
    config = read_settings(folder)
    if FROM_PYTHON not in config.values():
        return config
    marks = None
    with suppress(RunFolderError):  # nothing of the run itself is lost
        marks = read_marks(folder)
    return _name_custom(config, marks)


def _name_custom(config: Mapping[str, Any], marks: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Give a custom model and custom data a name; equal ones get the same name.

    Nothing that a seed decides has a part in it: neither a model's first values nor how the data
    is dealt, unless the user dealt it.
    """
    if marks is None:
        return config
    try:
        named = {"model": model_name(marks["model"]), "data": _data_name(marks)}
    except (KeyError, TypeError, ValueError, AttributeError):
        return config  # a damaged record is reported by `adaptcl resume`
    return {
        name: named[name] if name in named and value == FROM_PYTHON else value
        for name, value in config.items()
    }


def model_name(model: Mapping[str, Any]) -> str:
    """A name for a model that has none, from its marks (`runs/resumption.py`)."""
    content = {name: model[name] for name in ("tensors", "code")}
    return f"{model.get('name', 'module')[:_LONGEST_NAME]} {_short_hash(content)}"


def _data_name(marks: Mapping[str, Any]) -> str:
    samples = sum(marks["samples"])
    return f"{samples} samples {_short_hash([marks['origin'], marks['test']])}"


def _short_hash(content: Any) -> str:
    return f"{zlib.crc32(json.dumps(content).encode()):08x}"[:6]
